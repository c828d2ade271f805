//! How work is split over threads.

use std::ops::Range;

/// Items per task, so that there are about `tasks` tasks: a multiple of `unit`, and at most `most` or one unit.
pub(crate) fn split(items: usize, tasks: usize, unit: usize, most: usize) -> usize {
    let wanted = items.div_ceil(tasks.max(1)).next_multiple_of(unit);
    wanted.min(most / unit * unit).max(unit)
}

/// A rectangle of work in steps of equal size, the last ones smaller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub sizes: [usize; 2],
    pub steps: [usize; 2],
}

impl Grid {
    /// Number of tasks.
    pub fn tasks(&self) -> usize {
        self.sizes[0].div_ceil(self.steps[0]) * self.sizes[1].div_ceil(self.steps[1])
    }

    /// The part of a task, in both directions. Tasks of equal rows follow each other.
    pub fn task(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let columns = self.sizes[1].div_ceil(self.steps[1]);
        let part = |axis: usize, i: usize| {
            let start = i * self.steps[axis];
            start..(start + self.steps[axis]).min(self.sizes[axis])
        };
        (part(0, index / columns), part(1, index % columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_everything_once() {
        for (rows, columns, steps) in
            [(1, 1, [1, 1]), (10, 7, [3, 2]), (112, 8, [112, 3]), (5, 5, [9, 1])]
        {
            let grid = Grid { sizes: [rows, columns], steps };
            let mut seen = vec![0; rows * columns];
            for task in 0..grid.tasks() {
                let (y, x) = grid.task(task);
                y.for_each(|y| x.clone().for_each(|x| seen[y * columns + x] += 1));
            }
            assert!(seen.iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn steps_are_units() {
        assert_eq!(split(1000, 2, 14, 504), 504);
        assert_eq!(split(100_000, 8, 14, 112), 112);
        assert_eq!(split(3, 8, 14, 112), 14);
        assert_eq!(split(0, 8, 1, 0), 1);
    }
}
