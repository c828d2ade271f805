use std::net::TcpListener;

use super::*;

/// A port that nobody listens at.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn launch(rank: usize, world_size: usize, port: u16) -> Launch {
    Launch { rank, world_size, local_rank: rank, address: "localhost".to_owned(), port }
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// Lets processes meet, each after a delay, and returns what each of them gets, in their order.
fn meet(ranks: &[(Launch, Duration, u64)]) -> Vec<Result<[u8; 4]>> {
    thread::scope(|scope| {
        let handles: Vec<_> = ranks
            .iter()
            .map(|(launch, patience, delay)| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(*delay));
                    distribute(launch, *patience, || {
                        assert_eq!(launch.rank, 0, "only rank 0 makes the bytes");
                        Ok(*b"name")
                    })
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[track_caller]
fn assert_says(result: &Result<[u8; 4]>, part: &str) {
    let message = result.as_ref().unwrap_err().to_string();
    assert!(message.contains(part), "{message}");
}

#[test]
fn all_ranks_get_the_bytes_of_rank_0_in_whatever_order_they_come() {
    for delays in [[0, 100, 200, 50], [200, 0, 100, 0]] {
        let port = free_port();
        let ranks: Vec<_> =
            (0..4).map(|rank| (launch(rank, 4, port), LONG, delays[rank])).collect();
        for bytes in meet(&ranks) {
            assert_eq!(bytes.unwrap(), *b"name");
        }
    }
}

#[test]
fn one_rank_meets_nobody() {
    let launch = Launch { address: "no.such.host.invalid".to_owned(), ..launch(0, 1, 1) };
    assert_eq!(distribute(&launch, SHORT, || Ok(*b"name")).unwrap(), *b"name");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let port = free_port();
    let results = meet(&[(launch(0, 4, port), SHORT, 0), (launch(2, 4, port), LONG, 0)]);
    assert_says(&results[0], "these ranks have not come: 1, 3");
    assert_says(&results[0], &format!("localhost:{port}"));
    assert_says(&results[1], "rank 0 has given up");
}

#[test]
fn a_rank_0_that_does_not_come_is_an_error() {
    let results = meet(&[(launch(1, 2, free_port()), SHORT, 0)]);
    assert_says(&results[0], "rank 0 could not be reached");
}

#[test]
fn ranks_of_another_run_end_the_meeting_on_both_sides() {
    let port = free_port();
    let results = meet(&[(launch(0, 2, port), LONG, 0), (launch(1, 3, port), LONG, 50)]);
    assert_says(&results[0], "counts 3 ranks, rank 0 2");
    assert_says(&results[1], "rank 0 counts 2 ranks, this one 3");

    let port = free_port();
    let second = (launch(1, 3, port), LONG, 300);
    let results = meet(&[(launch(0, 3, port), LONG, 0), (launch(1, 3, port), LONG, 0), second]);
    assert_says(&results[0], "says that it is rank 1");
    assert_says(&results[1], "rank 0 has given up");
    assert_says(&results[2], "has a rank 1 already");
}

#[test]
fn strangers_are_left_alone() {
    let port = free_port();
    let results = thread::scope(|scope| {
        let stranger = scope.spawn(move || {
            thread::sleep(Duration::from_millis(100));
            let mut stream = TcpStream::connect(("localhost", port)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            // Closed with unread bytes, which some systems report as a reset.
            let _ = stream.read_to_end(&mut answer);
            answer
        });
        let results = meet(&[(launch(0, 2, port), LONG, 0), (launch(1, 2, port), LONG, 400)]);
        assert_eq!(stranger.join().unwrap(), b"");
        results
    });
    for bytes in results {
        assert_eq!(bytes.unwrap(), *b"name");
    }
}

#[test]
fn another_program_at_the_port_is_an_error_on_both_sides() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let results = thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"220 mail.example ESMTP ready\r\n").unwrap();
            let _ = stream.read(&mut [0; 64]);
        });
        let on = |rank| Launch { address: "127.0.0.1".to_owned(), ..launch(rank, 2, port) };
        meet(&[(on(0), SHORT, 0), (on(1), LONG, 0)])
    });
    assert_says(&results[0], "set MASTER_PORT to a free one");
    assert_says(&results[1], "another program answers there");
}

#[test]
fn what_rank_0_cannot_make_fails_the_others() {
    let port = free_port();
    thread::scope(|scope| {
        let other = scope.spawn(move || distribute::<4>(&launch(1, 2, port), LONG, || Ok([0; 4])));
        let make = || Err(Error::Cancelled);
        let error = distribute::<4>(&launch(0, 2, port), LONG, make).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_says(&other.join().unwrap(), "rank 0 has given up");
    });
}
