//! Work done ahead on threads, and handed over in order.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What became of a piece of work: the value, or the panic that ended it.
type Outcome<T> = Result<T, Box<dyn Any + Send>>;

struct State<T> {
    /// The piece that is asked for next; those before it are of no use.
    wanted: u64,
    /// The piece that the next idle thread takes on.
    next: u64,
    done: BTreeMap<u64, Outcome<T>>,
    closing: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Pieces that may lie finished or in work, the one that is asked for included.
    window: u64,
}

impl<T> Shared<T> {
    /// A thread that panicked has left the state whole: it computes without holding it.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Computes `make(0)`, `make(1)`, … on threads, no further ahead than a window.
///
/// Dropping it waits for the pieces in work and for nothing else.
pub(super) struct Prefetch<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts the threads, at piece `first`.
    pub fn start(
        threads: NonZeroUsize,
        ahead: usize,
        first: u64,
        make: impl Fn(u64) -> T + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let state = State { wanted: first, next: first, done: BTreeMap::new(), closing: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            window: ahead as u64 + 1,
        });
        let make = Arc::new(make);
        let mut prefetch = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for number in 0..threads.get() {
            let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
            let thread = std::thread::Builder::new().name(format!("load-{number}"));
            prefetch.threads.push(thread.spawn(move || work(&shared, &*make))?);
        }
        Ok(prefetch)
    }

    /// Waits for a piece. Asking for the one after the last is what the threads prepare for; any other starts them anew
    /// from there.
    pub fn take(&self, piece: u64) -> T {
        let mut state = self.shared.lock();
        if piece != state.wanted {
            state.wanted = piece;
            state.next = piece;
            state.done.clear();
            self.shared.changed.notify_all();
        }
        loop {
            if let Some(outcome) = state.done.remove(&piece) {
                state.wanted = piece + 1;
                self.shared.changed.notify_all();
                drop(state);
                return outcome.unwrap_or_else(|panic| resume_unwind(panic));
            }
            state = self.shared.wait(state);
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches the panics of its work, so there is none left to pass on.
            let _ = thread.join();
        }
    }
}

fn work<T>(shared: &Shared<T>, make: &dyn Fn(u64) -> T) {
    let mut state = shared.lock();
    loop {
        if state.closing {
            return;
        }
        if state.next >= state.wanted.saturating_add(shared.window) {
            state = shared.wait(state);
            continue;
        }
        let piece = state.next;
        state.next += 1;
        drop(state);
        let outcome = catch_unwind(AssertUnwindSafe(|| make(piece)));
        state = shared.lock();
        // Meanwhile another place may have been asked for.
        if (state.wanted..state.next).contains(&piece) {
            state.done.insert(piece, outcome);
            shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn pieces_come_in_order_whoever_is_faster() {
        let slow_when_even = |piece: u64| {
            std::thread::sleep(Duration::from_millis(3 * (1 - piece % 2)));
            piece * piece
        };
        let prefetch = Prefetch::start(threads(4), 3, 5, slow_when_even).unwrap();
        for piece in 5..30 {
            assert_eq!(prefetch.take(piece), piece * piece);
        }
        // Back, and far ahead.
        assert_eq!([prefetch.take(2), prefetch.take(3), prefetch.take(90)], [4, 9, 8100]);
    }

    #[test]
    fn nothing_is_made_beyond_the_window() {
        let furthest = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&furthest);
        let prefetch = Prefetch::start(threads(3), 2, 0, move |piece| {
            seen.fetch_max(piece, Ordering::SeqCst);
        });
        let prefetch = prefetch.unwrap();
        for piece in 0..20 {
            assert!(furthest.load(Ordering::SeqCst) <= piece + 2);
            prefetch.take(piece);
        }
    }

    #[test]
    fn dropping_stops_the_threads() {
        let made = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&made);
        let prefetch = Prefetch::start(threads(2), 4, 0, move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        prefetch.unwrap().take(0);
        let after = made.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(made.load(Ordering::SeqCst), after);
        // The threads held the only other handle.
        assert_eq!(Arc::strong_count(&made), 1);
    }

    #[test]
    fn a_panic_reaches_who_asks() {
        let prefetch = Prefetch::start(threads(2), 2, 0, |piece| {
            assert!(piece != 1, "one");
            piece
        });
        let prefetch = prefetch.unwrap();
        assert_eq!(prefetch.take(0), 0);
        let panic = catch_unwind(AssertUnwindSafe(|| prefetch.take(1))).unwrap_err();
        assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "one");
        assert_eq!(prefetch.take(2), 2);
    }
}
