//! Ranks that are threads of one process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;

use super::{Collective, Communicator, Transfer};
use crate::error::{Error, Result};

/// A rank among threads of one process, by shared memory: several devices of one machine, or tests.
///
/// A rank leaves its values where the others find them, and waits when it wants the result. Sums are made in the order
/// of the ranks, so that they don't depend on who comes first. When a rank is dropped, what the others still want of it
/// fails.
pub struct ThreadCommunicator {
    rank: usize,
    meeting: Arc<Meeting>,
    /// Rounds that this rank has started.
    started: AtomicU64,
}

/// Where ranks meet.
struct Meeting {
    world_size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that not all have finished, in their order.
    rounds: VecDeque<Round>,
    /// Rounds that all have finished.
    over: u64,
    gone: Option<usize>,
}

/// One exchange.
struct Round {
    collective: Collective,
    /// What each rank has brought.
    parts: Vec<Option<Vec<f32>>>,
    /// What each rank takes away, once all have brought something.
    result: Option<Arc<Vec<f32>>>,
    /// Ranks that have not taken it yet.
    waiting: usize,
}

impl ThreadCommunicator {
    /// The ranks of a run of `world_size`.
    pub fn group(world_size: usize) -> Vec<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let meeting = Arc::new(Meeting { world_size, state, changed });
        let rank = |rank| Self { rank, meeting: meeting.clone(), started: AtomicU64::new(0) };
        (0..world_size).map(rank).collect()
    }
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves what a rank brings to a round.
    fn bring(&self, round: u64, rank: usize, collective: Collective, part: Vec<f32>) -> Result<()> {
        let mut state = self.lock();
        let index = (round - state.over) as usize;
        if index == state.rounds.len() {
            let parts = vec![None; self.world_size];
            let waiting = self.world_size;
            state.rounds.push_back(Round { collective, parts, result: None, waiting });
        }
        let round = &mut state.rounds[index];
        let is_other = |other: &Vec<f32>| other.len() != part.len();
        if round.collective != collective || round.parts.iter().flatten().any(is_other) {
            let problem = format!(
                "it exchanges {} values ({collective:?}), and another rank something else",
                part.len()
            );
            return Err(Error::Parallel { rank, problem });
        }
        round.parts[rank] = Some(part);
        if round.parts.iter().all(Option::is_some) {
            round.result = Some(Arc::new(combined(collective, std::mem::take(&mut round.parts))));
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits for the result of a round, which a rank takes once.
    fn take(&self, round: u64, rank: usize) -> Result<Arc<Vec<f32>>> {
        let mut state = self.lock();
        loop {
            let index = (round - state.over) as usize;
            if let Some(result) = state.rounds[index].result.clone() {
                state.rounds[index].waiting -= 1;
                while state.rounds.front().is_some_and(|round| round.waiting == 0) {
                    state.rounds.pop_front();
                    state.over += 1;
                }
                return Ok(result);
            }
            if let Some(gone) = state.gone {
                let problem = format!("rank {gone} has left the run");
                return Err(Error::Parallel { rank, problem });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What comes of the parts of all ranks.
fn combined(collective: Collective, parts: Vec<Option<Vec<f32>>>) -> Vec<f32> {
    let mut parts = parts.into_iter().flatten();
    let mut first = parts.next().unwrap_or_default();
    if collective == Collective::AllReduceSum {
        for part in parts {
            first.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
    }
    first
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        self.meeting.lock().gone = Some(self.rank);
        self.meeting.changed.notify_all();
    }
}

impl Communicator for ThreadCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.meeting.world_size
    }

    fn start(&self, collective: Collective, values: &Tensor) -> Result<Transfer> {
        let (rank, meeting) = (self.rank, self.meeting.clone());
        let round = self.started.fetch_add(1, Ordering::Relaxed);
        let (shape, device) = (values.shape().clone(), values.device().clone());
        meeting.bring(round, rank, collective, values.flatten_all()?.to_vec1()?)?;
        Ok(Transfer::new(move || {
            let result = meeting.take(round, rank)?;
            Ok(Tensor::from_vec(result.to_vec(), shape, &device)?)
        }))
    }
}
