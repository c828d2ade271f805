//! What all ops share. Ops don't call ops; a formula that two of them need has its one home here.

pub(crate) mod activate;
pub(crate) mod activation;
pub(crate) mod autograd;
pub(crate) mod box_coding;
pub(crate) mod box_set;
pub(crate) mod check;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod filled_rows;
pub(crate) mod geometry;
pub(crate) mod isa;
pub(crate) mod levels;
pub(crate) mod matches;
pub(crate) mod order;
pub(crate) mod pairs;
pub(crate) mod parallel;
pub(crate) mod paste;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod testing;
