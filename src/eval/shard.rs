//! Which images are looked at together, and which part of a run looks at them.

use std::fmt;
use std::num::NonZeroUsize;

use super::CocoDataset;
use crate::error::{Error, Result};

/// One of several parts of a run, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// The whole run.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Part `index` of `count`.
    ///
    /// # Errors
    /// [`Error::Config`] unless `index < count`.
    pub fn new(index: usize, count: usize) -> Result<Self> {
        if index >= count {
            return Err(wrong(&format!("{index}/{count}")));
        }
        Ok(Self { index, count })
    }

    /// Reads `I/N`.
    ///
    /// # Errors
    /// [`Error::Config`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let parsed = text.split_once('/').and_then(|(index, count)| {
            Some((index.trim().parse().ok()?, count.trim().parse().ok()?))
        });
        let (index, count) = parsed.ok_or_else(|| wrong(text))?;
        Self::new(index, count)
    }

    /// The part that a cluster's scheduler asks this process to do, if it was started by one: a Slurm array
    /// (`SLURM_ARRAY_TASK_ID`, `_COUNT`, and `_MIN` and `_STEP` where set), or an indexed Kubernetes job
    /// (`JOB_COMPLETION_INDEX` with `JOB_COMPLETIONS`, which the pod's template has to set). `variable` reads the environment.
    ///
    /// # Errors
    /// [`Error::Config`] when the variables contradict each other or the number of parts is missing.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| -> Result<Option<usize>> {
            let Some(text) = variable(name) else { return Ok(None) };
            let wrong = |_| fault(name, &format!("`{text}`"), "a whole number from 0 on");
            text.trim().parse().map(Some).map_err(wrong)
        };
        let missing = |name: &str| {
            fault(name, "not set", "the number of parts; or give index and number yourself")
        };
        if let Some(task) = number("SLURM_ARRAY_TASK_ID")? {
            let count = number("SLURM_ARRAY_TASK_COUNT")?
                .ok_or_else(|| missing("SLURM_ARRAY_TASK_COUNT"))?;
            let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            let index = task.checked_sub(first).map(|offset| offset / step);
            let index = index.filter(|&index| index < count).ok_or_else(|| {
                let found = format!("{task}, of {count} tasks from {first} on");
                fault("SLURM_ARRAY_TASK_ID", &found, "one of the array's tasks")
            })?;
            return Self::new(index, count).map(Some);
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            let count = number("JOB_COMPLETIONS")?.ok_or_else(|| missing("JOB_COMPLETIONS"))?;
            return Self::new(index, count).map(Some);
        }
        Ok(None)
    }

    /// Its number, from 0 on.
    pub fn index(self) -> usize {
        self.index
    }

    /// The number of parts.
    pub fn count(self) -> usize {
        self.count
    }

    /// Whether an image with this id belongs to it. That depends on nothing but the id and the number of parts.
    pub fn takes(self, image_id: u64) -> bool {
        scatter(image_id) % self.count as u64 == self.index as u64
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Spreads ids evenly, whatever their pattern (splitmix64's finalizer).
fn scatter(id: u64) -> u64 {
    let mut bits = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn wrong(found: &str) -> Error {
    fault("shard", found, "INDEX/COUNT with INDEX from 0 to COUNT − 1, such as 0/3")
}

fn fault(field: &str, found: &str, expected: &str) -> Error {
    Error::Config {
        origin: "evaluation".to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

/// The images of a run in the order they are looked at, in batches.
///
/// Images of a batch are padded to a common size, so a network's results may depend on an image's neighbours in the last
/// digits. Batches are therefore made from the whole data set, and a shard takes whole batches (by the id of their
/// first image): figures don't depend on the number of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    batches: Vec<Vec<u64>>,
}

impl Plan {
    /// All images, by ascending id.
    pub fn new(dataset: &CocoDataset, batch: NonZeroUsize) -> Self {
        let ids: Vec<u64> = dataset.images().iter().map(|image| image.id).collect();
        Self { batches: ids.chunks(batch.get()).map(<[u64]>::to_vec).collect() }
    }

    /// The part that belongs to a shard.
    pub fn part(mut self, shard: Shard) -> Self {
        self.batches.retain(|batch| shard.takes(batch[0]));
        self
    }

    /// The batches, none of them empty.
    pub fn batches(&self) -> &[Vec<u64>] {
        &self.batches
    }

    /// All ids, in order.
    pub fn image_ids(&self) -> Vec<u64> {
        self.batches.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(entries: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| {
            entries.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn schedulers_name_the_part() {
        let shard = |entries| Shard::from_environment(environment(entries)).unwrap();
        assert_eq!(shard(&[]), None);
        let slurm = &[("SLURM_ARRAY_TASK_ID", "2"), ("SLURM_ARRAY_TASK_COUNT", "3")];
        assert_eq!(shard(slurm), Some(Shard { index: 2, count: 3 }));
        let from_one = &[
            ("SLURM_ARRAY_TASK_ID", "3"),
            ("SLURM_ARRAY_TASK_COUNT", "3"),
            ("SLURM_ARRAY_TASK_MIN", "1"),
        ];
        assert_eq!(shard(from_one), Some(Shard { index: 2, count: 3 }));
        let in_steps = &[
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_COUNT", "3"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
        ];
        assert_eq!(shard(in_steps), Some(Shard { index: 2, count: 3 }));
        let kubernetes = &[("JOB_COMPLETION_INDEX", "0"), ("JOB_COMPLETIONS", "4")];
        assert_eq!(shard(kubernetes), Some(Shard { index: 0, count: 4 }));
    }

    #[test]
    fn contradictions_are_errors_that_name_the_variable() {
        for (entries, expected) in [
            (&[("SLURM_ARRAY_TASK_ID", "2")][..], "`SLURM_ARRAY_TASK_COUNT` is not set"),
            (&[("JOB_COMPLETION_INDEX", "2")], "`JOB_COMPLETIONS` is not set"),
            (&[("JOB_COMPLETION_INDEX", "x")], "`JOB_COMPLETION_INDEX` is `x`"),
            (&[("JOB_COMPLETION_INDEX", "4"), ("JOB_COMPLETIONS", "4")], "`shard` is 4/4"),
            (
                &[("SLURM_ARRAY_TASK_ID", "9"), ("SLURM_ARRAY_TASK_COUNT", "3")],
                "`SLURM_ARRAY_TASK_ID` is 9, of 3 tasks from 0 on",
            ),
        ] {
            let error = Shard::from_environment(environment(entries)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn parts_are_written_index_of_count() {
        assert_eq!(Shard::parse("1/3").unwrap(), Shard { index: 1, count: 3 });
        for wrong in ["3/3", "1", "/", "-1/3", "1/0", "a/b", ""] {
            let error = Shard::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("`shard`") && error.contains("such as 0/3"), "{error}");
        }
    }

    #[test]
    fn every_id_belongs_to_one_part_and_parts_are_even() {
        let count = 3;
        let mut sizes = [0; 3];
        // Only even ids, which a plain remainder would pile up.
        for id in (0..3000).map(|id| 2 * id) {
            let takers: Vec<usize> =
                (0..count).filter(|&index| Shard { index, count }.takes(id)).collect();
            assert_eq!(takers.len(), 1);
            sizes[takers[0]] += 1;
        }
        assert!(sizes.iter().all(|&size| (900..1100).contains(&size)), "{sizes:?}");
        assert!((0..100).all(|id| Shard::WHOLE.takes(id)));
    }
}
