//! What streams wait for, as the calling thread has arranged it.
//!
//! Work is done inside the call that asks for it, so that a wait between streams that is missing
//! would never show. Libraries whose work runs beside the program's own (NCCL's) therefore ask here
//! whether their stream has waited for what was put into the thread's other streams, and may have
//! work done only when something waits for it.
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

type Held = Box<dyn FnOnce()>;

/// Stands for the host among those that wait.
pub const HOST: usize = usize::MAX;

#[derive(Default)]
struct Order {
    /// Pieces of work that were put into a stream.
    put: HashMap<usize, u64>,
    /// How many of a stream's pieces another one, or the host, has waited for: (waiting, waited for).
    seen: HashMap<(usize, usize), u64>,
    /// Work that is not done yet, with its place in its stream.
    held: HashMap<usize, VecDeque<(u64, Held)>>,
}

thread_local! {
    static ORDER: RefCell<Order> = RefCell::default();
}

/// A place in a stream: everything before it is over where somebody has waited for it.
#[derive(Clone)]
pub struct Mark {
    stream: usize,
    seen: Vec<(usize, u64)>,
}

impl Order {
    /// What the host has waited for is over for everything that it asks for later.
    fn seen_by(&self, stream: usize, other: usize) -> u64 {
        let seen = [stream, HOST].map(|waiting| self.seen.get(&(waiting, other)).copied());
        seen.into_iter().flatten().max().unwrap_or(0)
    }

    /// Takes out the held work of a stream up to a place.
    fn take(&mut self, stream: usize, place: u64) -> Vec<Held> {
        let Some(held) = self.held.get_mut(&stream) else { return Vec::new() };
        let due = held.iter().take_while(|(at, _)| *at <= place).count();
        held.drain(..due).map(|(_, work)| work).collect()
    }
}

fn with<T>(f: impl FnOnce(&mut Order) -> T) -> T {
    ORDER.with_borrow_mut(f)
}

/// A piece of work is put into a stream, and is about to be done: what it comes after is done first.
pub fn put(stream: usize) {
    catch_up(stream);
    with(|order| *order.put.entry(stream).or_default() += 1);
}

/// Does what a stream still holds.
pub fn catch_up(stream: usize) {
    let due = with(|order| order.take(stream, u64::MAX));
    due.into_iter().for_each(|work| work());
}

/// Puts a piece of work into a stream that is done when something waits for it.
pub fn hold(stream: usize, work: impl FnOnce() + 'static) {
    with(|order| {
        let place = order.put.entry(stream).or_default();
        *place += 1;
        let place = *place;
        order.held.entry(stream).or_default().push_back((place, Box::new(work)));
    });
}

/// Where a stream is, for an event.
pub fn mark(stream: usize) -> Mark {
    with(|order| {
        let others: Vec<usize> = order.put.keys().copied().filter(|s| *s != stream).collect();
        let mut seen: Vec<(usize, u64)> =
            others.into_iter().map(|other| (other, order.seen_by(stream, other))).collect();
        seen.push((stream, order.put.get(&stream).copied().unwrap_or(0)));
        Mark { stream, seen }
    })
}

fn place(mark: &Mark) -> u64 {
    mark.seen.iter().find(|(stream, _)| *stream == mark.stream).map_or(0, |(_, place)| *place)
}

/// A stream, or the host, waits for what an event has marked.
pub fn wait(waiting: usize, mark: &Mark) {
    let due = with(|order| {
        for (other, place) in &mark.seen {
            let seen = order.seen.entry((waiting, *other)).or_default();
            *seen = (*seen).max(*place);
        }
        order.take(mark.stream, place(mark))
    });
    due.into_iter().for_each(|work| work());
}

/// A stream whose work this one has not waited for. The legacy stream is left out: its copies are
/// over when their call returns.
pub fn unordered(stream: usize) -> Option<usize> {
    with(|order| {
        let others = order.put.iter().filter(|(other, _)| **other != stream && **other > 1);
        let mut unseen = others.filter(|(other, put)| order.seen_by(stream, **other) < **put);
        unseen.next().map(|(other, _)| *other)
    })
}
