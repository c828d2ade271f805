//! Where ranks meet before they can talk to each other: rank 0 hands some bytes to all others over TCP.
//!
//! A rank says a magic word, the size of the run as it knows it, and who it is. Rank 0 waits for all of them, then gives
//! the bytes to everyone: either all ranks get them, or all fail. Whoever says something else is not of this program and
//! is left alone.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Launch;
use crate::error::{Error, Result};

/// First bytes of either side, with the version of what follows.
const MAGIC: [u8; 8] = *b"cdetect1";

/// Between two looks for what has not come yet.
const PAUSE: Duration = Duration::from_millis(20);

/// Longest wait for who has connected to say who it is, and for one address to answer.
const GREETING: Duration = Duration::from_secs(5);

/// What rank 0 answers.
const WELCOME: u8 = 0;
const OTHER_SIZE: u8 = 1;
const NO_SUCH_RANK: u8 = 2;

/// Gives every rank the bytes that `make` returns on rank 0, where alone it is called, after all have come.
///
/// Rank 0 listens at [`Launch::port`], on the machine's own addresses only if [`Launch::address`] is one of those that
/// never leave it (`localhost`). The bytes are sent as they are: this is for networks whose machines trust each other.
///
/// # Errors
/// [`Error::Rendezvous`] when not all ranks have come within `patience`, or ranks disagree about the run; those of
/// `make`.
pub fn distribute<const N: usize>(
    launch: &Launch,
    patience: Duration,
    make: impl FnOnce() -> Result<[u8; N]>,
) -> Result<[u8; N]> {
    let meeting = Meeting { launch, patience, deadline: Instant::now() + patience };
    match launch.rank {
        _ if launch.world_size == 1 => make(),
        0 => meeting.host(make),
        _ => meeting.join(),
    }
}

struct Meeting<'a> {
    launch: &'a Launch,
    patience: Duration,
    deadline: Instant,
}

/// What a rank says first.
struct Greeting {
    world_size: u32,
    rank: u32,
}

impl Greeting {
    const BYTES: usize = MAGIC.len() + 8;

    fn write(&self, stream: &mut TcpStream) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.world_size.to_le_bytes());
        bytes.extend(self.rank.to_le_bytes());
        stream.write_all(&bytes)
    }

    /// `None` from who is not of this program.
    fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = [0; Self::BYTES];
        stream.read_exact(&mut bytes).ok()?;
        let number = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let (world_size, rank) = (number(MAGIC.len())?, number(MAGIC.len() + 4)?);
        bytes.starts_with(&MAGIC).then_some(Self { world_size, rank })
    }
}

impl Meeting<'_> {
    /// Rank 0: waits for all others.
    fn host<const N: usize>(&self, make: impl FnOnce() -> Result<[u8; N]>) -> Result<[u8; N]> {
        let listener = self.listen()?;
        let mut others: Vec<Option<TcpStream>> = Vec::new();
        others.resize_with(self.launch.world_size - 1, || None);
        while others.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, from)) => self.admit(stream, from, &mut others)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.left().is_zero() {
                        return Err(self.fault(self.missing(&others)));
                    }
                    thread::sleep(PAUSE);
                }
                // A connection that was lost before it was taken is no reason to give up.
                Err(_) => thread::sleep(PAUSE),
            }
        }
        let bytes = make()?;
        for (other, rank) in others.iter_mut().flatten().zip(1..) {
            let answered = answer(other, WELCOME, self.launch.world_size)
                .and_then(|()| other.write_all(&bytes));
            answered.map_err(|error| self.fault(format!("rank {rank} has left again: {error}")))?;
        }
        Ok(bytes)
    }

    fn listen(&self) -> Result<TcpListener> {
        let port = self.launch.port;
        let own = (self.launch.address.as_str(), port)
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.find(|address| address.ip().is_loopback()));
        let places = match own {
            Some(address) => vec![address],
            // Both families at once, where there are both.
            None => [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)]
                .map(|ip| SocketAddr::new(ip, port))
                .to_vec(),
        };
        // A run that was started again may still have its predecessor there.
        let until = self.deadline.min(Instant::now() + GREETING);
        let bind = || TcpListener::bind(&places[..]);
        let mut listener = bind();
        while listener.is_err() && Instant::now() < until {
            thread::sleep(PAUSE);
            listener = bind();
        }
        listener
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| {
                self.fault(format!(
                    "port {port} cannot be listened at: {error}; set MASTER_PORT to a free one, the same for all ranks"
                ))
            })
    }

    /// Takes a rank in. A stranger is ignored; a rank of another run, or one that is here already, ends the meeting.
    fn admit(
        &self,
        mut stream: TcpStream,
        from: SocketAddr,
        others: &mut [Option<TcpStream>],
    ) -> Result<()> {
        let is_ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(GREETING)))
            .and_then(|()| stream.set_write_timeout(Some(GREETING)));
        let Some(greeting) = is_ready.ok().and_then(|()| Greeting::read(&mut stream)) else {
            return Ok(());
        };
        let Greeting { world_size, rank } = greeting;
        let own = self.launch.world_size;
        let refuse = |mut stream: TcpStream, answer_code: u8, problem: String| {
            // That it could not be told matters less than the problem itself.
            let _ = answer(&mut stream, answer_code, own);
            let _ = stream.shutdown(Shutdown::Write);
            Err(self.fault(problem))
        };
        if world_size as usize != own {
            let problem = format!("rank {rank} at {from} counts {world_size} ranks, rank 0 {own}");
            return refuse(stream, OTHER_SIZE, problem);
        }
        match (rank as usize).checked_sub(1).and_then(|place| others.get_mut(place)) {
            Some(place @ None) => {
                *place = Some(stream);
                Ok(())
            }
            _ => {
                let problem =
                    format!("a second process, at {from}, says that it is rank {rank} of {own}");
                refuse(stream, NO_SUCH_RANK, problem)
            }
        }
    }

    fn missing(&self, others: &[Option<TcpStream>]) -> String {
        let missing: Vec<String> = others
            .iter()
            .zip(1..)
            .filter(|(other, _)| other.is_none())
            .map(|(_, rank): (_, usize)| rank.to_string())
            .collect();
        format!("within {:?}, these ranks have not come: {}", self.patience, missing.join(", "))
    }

    /// Another rank: looks for rank 0 until it is there, then waits for what it gives.
    fn join<const N: usize>(&self) -> Result<[u8; N]> {
        let Launch { rank, world_size, .. } = *self.launch;
        let number = |value: usize| {
            u32::try_from(value).map_err(|_| self.fault(format!("{value} ranks are too many")))
        };
        let greeting = Greeting { world_size: number(world_size)?, rank: number(rank)? };
        let mut stream = self.find()?;
        let lost = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                self.fault(format!("within {:?}, rank 0 has not answered", self.patience))
            }
            _ => self.fault(format!("rank 0 has given up; see its message ({error})")),
        };
        let mut head = [0; MAGIC.len() + 5];
        greeting.write(&mut stream).map_err(lost)?;
        stream.read_exact(&mut head).map_err(lost)?;
        let [.., code, a, b, c, d] = head;
        let theirs = u32::from_le_bytes([a, b, c, d]);
        match code {
            _ if !head.starts_with(&MAGIC) => Err(self
                .fault("another program answers there; set MASTER_PORT to a free port".to_owned())),
            WELCOME => {
                let mut bytes = [0; N];
                stream.read_exact(&mut bytes).map_err(lost)?;
                Ok(bytes)
            }
            OTHER_SIZE => {
                Err(self.fault(format!("rank 0 counts {theirs} ranks, this one {world_size}")))
            }
            _ => Err(self.fault(format!("rank 0 has a rank {rank} already"))),
        }
    }

    fn find(&self) -> Result<TcpStream> {
        loop {
            match self.connect() {
                Ok(stream) => return Ok(stream),
                Err(error) if self.left().is_zero() => {
                    let problem = format!(
                        "within {:?}, rank 0 could not be reached: {error}; is MASTER_ADDR its machine, and \
                         MASTER_PORT open there?",
                        self.patience
                    );
                    return Err(self.fault(problem));
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (self.launch.address.as_str(), self.launch.port).to_socket_addrs()? {
            let wait = self.left().clamp(PAUSE, GREETING);
            match TcpStream::connect_timeout(&address, wait) {
                // Where nobody listens yet, a system may connect a port to itself.
                Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                Ok(stream) => {
                    stream.set_read_timeout(Some(self.left().max(PAUSE)))?;
                    stream.set_write_timeout(Some(GREETING))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn fault(&self, problem: String) -> Error {
        let Launch { rank, address, port, .. } = self.launch;
        Error::Rendezvous { rank: *rank, address: format!("{address}:{port}"), problem }
    }
}

fn answer(stream: &mut TcpStream, code: u8, world_size: usize) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(code);
    bytes.extend((world_size as u32).to_le_bytes());
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests;
