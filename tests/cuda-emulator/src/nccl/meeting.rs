//! Where the ranks of a communicator find what the others have brought.
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What comes of the parts of all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Round {
    Sum,
    /// The part of this rank.
    From(usize),
}

pub struct Meeting {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: usize,
    /// Exchanges that not all ranks have finished, by number.
    open: HashMap<u64, Open>,
}

struct Open {
    round: Round,
    parts: Vec<Option<Vec<f32>>>,
    /// Ranks that have taken the result.
    taken: usize,
}

static MEETINGS: Mutex<Option<HashMap<[u8; 128], Arc<Meeting>>>> = Mutex::new(None);

impl Meeting {
    /// Waits for all ranks.
    pub fn join(id: [u8; 128], ranks: usize) -> Arc<Self> {
        let meeting = {
            let mut all = MEETINGS.lock().unwrap_or_else(|e| e.into_inner());
            let fresh =
                || Arc::new(Meeting { ranks, state: Mutex::default(), changed: Condvar::new() });
            all.get_or_insert_with(HashMap::new).entry(id).or_insert_with(fresh).clone()
        };
        let mut state = meeting.lock();
        state.joined += 1;
        meeting.changed.notify_all();
        while state.joined < meeting.ranks {
            state = meeting.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        drop(state);
        meeting
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Leaves a rank's part of an exchange.
    pub fn bring(
        &self,
        number: u64,
        rank: usize,
        round: Round,
        part: Vec<f32>,
    ) -> Result<(), String> {
        let mut state = self.lock();
        let fresh = || Open { round, parts: vec![None; self.ranks], taken: 0 };
        let open = state.open.entry(number).or_insert_with(fresh);
        if open.round != round || open.parts.iter().flatten().any(|p| p.len() != part.len()) {
            return Err(format!(
                "exchange {number} of rank {rank} is {round:?} of {} values, another rank's is not",
                part.len()
            ));
        }
        open.parts[rank] = Some(part);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until all have left their part, and combines them, in the order of the ranks.
    pub fn take(&self, number: u64) -> Vec<f32> {
        let mut state = self.lock();
        while state.open[&number].parts.iter().any(Option::is_none) {
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        let open = state.open.get_mut(&number).unwrap();
        let mut parts = open.parts.iter().flatten();
        let result = match open.round {
            Round::From(root) => open.parts[root].clone().unwrap_or_default(),
            Round::Sum => {
                let mut sum = parts.next().cloned().unwrap_or_default();
                for part in parts {
                    sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
                }
                sum
            }
        };
        open.taken += 1;
        if open.taken == self.ranks {
            state.open.remove(&number);
        }
        result
    }
}
