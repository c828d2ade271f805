//! Ranks that are threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;

use super::Communicator;
use crate::error::{Error, Result};

/// A rank among threads of one process, by shared memory: several devices of one machine, or tests.
///
/// Sums are made in the order of the ranks, so that they don't depend on who comes first. When a rank is dropped, what
/// the others wait for fails.
pub struct ThreadCommunicator {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// Where ranks meet.
struct Meeting {
    world_size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What each rank has brought.
    parts: Vec<Option<Vec<f32>>>,
    /// What each rank takes away.
    result: Arc<Vec<f32>>,
    /// Ranks that have not taken it yet.
    leaving: usize,
    gone: Option<usize>,
}

impl ThreadCommunicator {
    /// The ranks of a run of `world_size`.
    pub fn group(world_size: usize) -> Vec<Self> {
        let meeting = Arc::new(Meeting {
            world_size,
            state: Mutex::new(State {
                parts: vec![None; world_size],
                result: Arc::default(),
                leaving: 0,
                gone: None,
            }),
            changed: Condvar::new(),
        });
        (0..world_size).map(|rank| Self { rank, meeting: meeting.clone() }).collect()
    }

    /// Brings values, waits for all others, and takes away what `combine` makes of all.
    fn meet(
        &self,
        values: &Tensor,
        combine: impl Fn(&[Option<Vec<f32>>]) -> Vec<f32>,
    ) -> Result<Tensor> {
        let (shape, device) = (values.shape().clone(), values.device().clone());
        let values = values.flatten_all()?.to_vec1::<f32>()?;
        let meeting = &self.meeting;
        // A rank may still be on its way out of the last meeting.
        let mut state = self.wait(meeting.lock(), |state| state.leaving == 0)?;
        state.parts[self.rank] = Some(values);
        if state.parts.iter().all(Option::is_some) {
            state.result = Arc::new(combine(&state.parts));
            state.parts.fill(None);
            state.leaving = meeting.world_size;
            meeting.changed.notify_all();
        }
        let mut state = self.wait(state, |state| state.leaving > 0)?;
        let result = state.result.clone();
        state.leaving -= 1;
        meeting.changed.notify_all();
        drop(state);
        Ok(Tensor::from_vec(result.to_vec(), shape, &device)?)
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        while !ready(&state) {
            if let Some(gone) = state.gone {
                let problem = format!("rank {gone} has left the run");
                return Err(Error::Parallel { rank: self.rank, problem });
            }
            state = self.meeting.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    fn all_reduce_sum(&self, values: &Tensor) -> Result<Tensor> {
        self.meet(values, |parts| {
            let mut parts = parts.iter().flatten();
            let mut sum = parts.next().cloned().unwrap_or_default();
            for part in parts {
                sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
            }
            sum
        })
    }

    fn broadcast(&self, values: &Tensor) -> Result<Tensor> {
        self.meet(values, |parts| parts.iter().flatten().next().cloned().unwrap_or_default())
    }
}
