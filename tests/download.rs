//! Published weights from a server on this machine that behaves as badly as servers do.
#![cfg(feature = "download")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_detection::checkpoint::PublishedWeights;
use candle_detection::checkpoint::{Fetcher, Network, sha256, verify_hash};
use candle_detection::config::get;
use candle_detection::{Error, Event, Progress, Silent};

const FILE: &str = "weights.bin";
const SIZE: usize = 1_000_000;
const STALL: Duration = Duration::from_millis(300);

/// What the server does with one request; with the last of its list, for all that follow.
#[derive(Clone)]
enum Reply {
    /// The file, or the part asked for.
    Well,
    /// The whole file, whatever part was asked for.
    IgnoresRanges,
    /// So many bytes of what was asked for, then the end of the connection.
    Cuts(usize),
    /// So many bytes, then nothing.
    Stalls(usize),
    /// Another part than asked for.
    WrongPart,
    /// A status and a page.
    Status(&'static str),
    /// Other content, of the length promised.
    Wrong(Vec<u8>),
}

struct Server {
    url: String,
    requests: Arc<Mutex<Vec<Option<u64>>>>,
}

impl Server {
    fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/{FILE}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
        let log = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (replies, log) = (replies.clone(), log.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &replies, &log));
            }
        });
        Self { url, requests }
    }

    /// First byte asked for by each request; `None` when it asked for the whole file.
    fn requests(&self) -> Vec<Option<u64>> {
        self.requests.lock().unwrap().clone()
    }

    fn weights(&self) -> PublishedWeights {
        PublishedWeights {
            file: FILE.to_owned(),
            url: self.url.clone(),
            sha256: Some(content_hash()),
            sha256_prefix: None,
            ..get("maskrcnn_resnet50_fpn").unwrap().weights[0].clone()
        }
    }
}

fn serve(mut stream: TcpStream, replies: &Mutex<VecDeque<Reply>>, log: &Mutex<Vec<Option<u64>>>) {
    let mut from = None;
    for line in BufReader::new(stream.try_clone().unwrap()).lines() {
        let line = line.unwrap_or_default().to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = Some(range.trim_end_matches('-').parse::<u64>().unwrap());
        }
        if line.is_empty() {
            break;
        }
    }
    log.lock().unwrap().push(from);
    let reply = {
        let mut replies = replies.lock().unwrap();
        if replies.len() > 1 { replies.pop_front().unwrap() } else { replies[0].clone() }
    };
    let content = content();
    let whole = |content: &[u8]| {
        [
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len()).as_bytes(),
            content,
        ]
        .concat()
    };
    let partial = |start: usize| {
        match from {
        None => whole(&content),
        Some(_) if start >= SIZE => {
            format!("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{SIZE}\r\nContent-Length: 0\r\n\r\n").into_bytes()
        }
        Some(_) => {
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{SIZE}\r\nContent-Length: {}\r\n\r\n",
                SIZE - 1,
                SIZE - start
            );
            [head.as_bytes(), &content[start..]].concat()
        }
    }
    };
    let start = from.unwrap_or(0) as usize;
    let head_length =
        |response: &[u8]| response.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    // The other side may hang up at any time, which is part of the tests.
    let _ = match reply {
        Reply::Well => stream.write_all(&partial(start)),
        Reply::IgnoresRanges => stream.write_all(&whole(&content)),
        Reply::WrongPart => stream.write_all(&partial(start / 2)),
        Reply::Cuts(length) => {
            let response = partial(start);
            stream.write_all(&response[..head_length(&response) + length])
        }
        Reply::Stalls(length) => {
            let response = partial(start);
            stream.write_all(&response[..head_length(&response) + length]).map(|()| {
                std::thread::sleep(STALL * 20);
            })
        }
        Reply::Status(status) => stream
            .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\n\r\npage").as_bytes()),
        Reply::Wrong(other) => stream.write_all(&whole(&other)),
    };
}

fn content() -> Vec<u8> {
    (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn content_hash() -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content()).unwrap();
    sha256(file.path()).unwrap()
}

fn fetcher(folder: &Path) -> Fetcher {
    Fetcher::new(folder)
        .connect_timeout(Duration::from_secs(5))
        .stall_timeout(STALL)
        .retries(2, Duration::from_millis(1))
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".lock"))
        .collect();
    names.sort();
    names
}

/// Fetches through a server with these manners; gives the requests that it saw.
fn succeeds(replies: &[Reply]) -> Vec<Option<u64>> {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(replies.iter().cloned());
    let path = fetcher(folder.path()).fetch(&server.weights(), &Silent).unwrap();
    assert_eq!(path, folder.path().join(FILE));
    assert!(std::fs::read(&path).unwrap() == content());
    assert_eq!(files(folder.path()), [FILE]);
    server.requests()
}

fn fails(replies: &[Reply]) -> (String, Vec<Option<u64>>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(replies.iter().cloned());
    let weights = server.weights();
    match fetcher(folder.path()).fetch(&weights, &Silent) {
        Err(Error::Download { url, path, problem }) => {
            assert_eq!(url, weights.url);
            assert_eq!(path, folder.path().join(FILE));
            (problem, server.requests(), files(folder.path()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_fetched_once_with_progress() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new([Reply::Well]);
    let weights = server.weights();
    let deep = folder.path().join("a/b");
    let seen = AtomicU64::new(0);
    let progress = |event: Event<'_>| {
        if let Event::Downloading { file, done, total } = event {
            assert_eq!((file, total), (FILE, Some(SIZE as u64)));
            assert!(seen.swap(done, Ordering::SeqCst) <= done);
        }
        ControlFlow::Continue(())
    };
    let first = fetcher(&deep).fetch(&weights, &progress).unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), SIZE as u64);
    let second = fetcher(&deep).network(Network::Offline).fetch(&weights, &Silent).unwrap();
    assert_eq!(first, second);
    assert_eq!(server.requests(), [None]);
}

#[test]
fn interruptions_are_resumed() {
    assert_eq!(
        succeeds(&[Reply::Cuts(300_000), Reply::Cuts(1000), Reply::Well]),
        [None, Some(300_000), Some(301_000)]
    );
    // More interruptions than retries: bytes were gained each time.
    let requests = succeeds(&vec![Reply::Cuts(100_000); 12]);
    assert_eq!(requests.len(), 10);
    assert_eq!(requests[9], Some(900_000));
}

#[test]
fn stalls_are_noticed_and_resumed() {
    let start = Instant::now();
    assert_eq!(succeeds(&[Reply::Stalls(200_000), Reply::Well]), [None, Some(200_000)]);
    assert!(start.elapsed() > STALL && start.elapsed() < STALL * 15, "{:?}", start.elapsed());
    let (problem, requests, left) = fails(&[Reply::Stalls(0)]);
    assert!(problem.contains("timeout") && problem.contains("3 requests"), "{problem}");
    assert_eq!((requests.len(), left.as_slice()), (3, ["weights.bin.part".to_owned()].as_slice()));
}

#[test]
fn servers_without_ranges_start_again() {
    assert_eq!(succeeds(&[Reply::Cuts(300_000), Reply::IgnoresRanges]), [None, Some(300_000)]);
    assert_eq!(
        succeeds(&[Reply::Cuts(300_000), Reply::WrongPart, Reply::Well]),
        [None, Some(300_000), None]
    );
}

#[test]
fn passing_failures_are_retried_and_lasting_ones_are_not() {
    assert_eq!(
        succeeds(&[
            Reply::Status("503 Service Unavailable"),
            Reply::Status("429 Too Many Requests"),
            Reply::Well
        ])
        .len(),
        3
    );
    let (problem, requests, left) = fails(&[Reply::Status("404 Not Found")]);
    assert!(problem.contains("404"), "{problem}");
    assert_eq!((requests.len(), left.len()), (1, 0));
    let (problem, requests, _) = fails(&[Reply::Status("500 Internal Server Error")]);
    assert!(problem.contains("500") && problem.contains("3 requests"), "{problem}");
    assert_eq!(requests.len(), 3);
}

#[test]
fn a_wrong_file_is_deleted_and_described() {
    let page = b"<html>Please log in</html>".to_vec();
    let (problem, requests, left) = fails(&[Reply::Wrong(page)]);
    assert!(problem.contains(&content_hash()), "{problem}");
    assert!(problem.contains("wrong file") && problem.contains("web page"), "{problem}");
    assert_eq!((requests.len(), left.len()), (1, 0));
    // Left over from another version of the file: the whole is fetched once more.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weights.bin.part"), [7; 5000]).unwrap();
    let server = Server::new([Reply::Well]);
    let path = fetcher(folder.path()).fetch(&server.weights(), &Silent).unwrap();
    assert!(std::fs::read(path).unwrap() == content());
    assert_eq!(server.requests(), [Some(5000), None]);
    // The same, as long as the file or longer: nothing is left to ask for.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weights.bin.part"), vec![7; SIZE + 9]).unwrap();
    let path = fetcher(folder.path()).fetch(&server.weights(), &Silent).unwrap();
    assert!(std::fs::read(path).unwrap() == content());
}

/// Everything was there but the renaming.
#[test]
fn a_complete_part_is_only_checked() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weights.bin.part"), content()).unwrap();
    let server = Server::new([Reply::Well]);
    fetcher(folder.path()).fetch(&server.weights(), &Silent).unwrap();
    assert_eq!(server.requests(), [Some(SIZE as u64)]);
    assert_eq!(files(folder.path()), [FILE]);
}

#[test]
fn several_at_once_download_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new([Reply::Cuts(400_000), Reply::Well]);
    let weights = server.weights();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| fetcher(folder.path()).fetch(&weights, &Silent)))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), folder.path().join(FILE));
        }
    });
    assert_eq!(server.requests(), [None, Some(400_000)]);
}

#[test]
fn a_stopped_download_goes_on_later() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new([Reply::Well]);
    let weights = server.weights();
    let stop = |event: Event<'_>| match event {
        Event::Downloading { done, .. } if done > 100_000 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stop: &dyn Progress = &stop;
    assert!(matches!(fetcher(folder.path()).fetch(&weights, stop), Err(Error::Cancelled)));
    assert_eq!(files(folder.path()), ["weights.bin.part"]);
    fetcher(folder.path()).fetch(&weights, &Silent).unwrap();
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].is_some_and(|from| from > 100_000), "{requests:?}");
}

#[test]
fn nobody_there_and_nobody_asked() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new([Reply::Well]);
    let mut weights = server.weights();
    let error =
        fetcher(folder.path()).network(Network::Offline).fetch(&weights, &Silent).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("CANDLE_DETECTION_OFFLINE") && message.contains(&weights.url),
        "{message}"
    );
    assert!(message.contains(&folder.path().join(FILE).display().to_string()), "{message}");
    assert!(server.requests().is_empty());

    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    weights.url = format!("http://{free}/{FILE}");
    let error = fetcher(folder.path()).fetch(&weights, &Silent).unwrap_err();
    assert!(error.to_string().contains("3 requests"), "{error}");
}

#[test]
fn hashes_are_checked_whole_or_by_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    std::fs::write(&path, "abc").unwrap();
    // The example of FIPS 180-2.
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(sha256(&path).unwrap(), hash);
    let mut weights = get("maskrcnn_resnet50_fpn").unwrap().weights[0].clone();
    weights.file = FILE.to_owned();
    let offline = fetcher(folder.path()).network(Network::Offline);
    for (whole, prefix, right) in [
        (Some(hash), None, true),
        (Some(hash), Some("00000000"), true),
        (None, Some("ba7816bf"), true),
        (None, Some("BA7816BF8F"), true),
        (None, Some("ba7816be"), false),
        (Some(&*"0".repeat(64)), Some("ba7816bf"), false),
    ] {
        weights.sha256 = whole.map(str::to_owned);
        weights.sha256_prefix = prefix.map(str::to_owned);
        assert_eq!(verify_hash(&path, &weights).is_ok(), right, "{whole:?} {prefix:?}");
        match offline.fetch(&weights, &Silent) {
            Ok(found) => assert!(right && found == path),
            Err(Error::Checksum { path: named, found, expected }) => {
                assert!(!right && named == path && found == hash);
                assert!(expected.starts_with(whole.or(prefix).unwrap()));
            }
            other => panic!("{other:?}"),
        }
    }
    weights.sha256 = None;
    for prefix in [None, Some(""), Some("ba78")] {
        weights.sha256_prefix = prefix.map(str::to_owned);
        assert!(
            matches!(offline.fetch(&weights, &Silent), Err(Error::Config { .. })),
            "{prefix:?}"
        );
    }
    weights.sha256_prefix = Some("ba7816bf".to_owned());
    for file in ["../weights.bin", "/etc/passwd", "a/b", "..", "", "a\\b"] {
        weights.file = file.to_owned();
        assert!(matches!(offline.fetch(&weights, &Silent), Err(Error::Config { .. })), "{file}");
    }
}
