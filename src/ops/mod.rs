//! Operations on tensors, one folder each. Images and features are channels last: `[N, H, W, C]`.
//!
//! An op's `mod.rs` is its contract: documentation, checks, capacities, tie rules. `cpu.rs` only computes. Ops don't
//! call ops; where one needs another's result, the room above composes them.
//!
//! | op | computes |
//! | --- | --- |
//! | [`anchor_grid`] | anchors of all levels from shape scalars |
//! | [`top_k`] | best entries of every level |
//! | [`decode_proposals`] | boxes and scores of chosen anchors |
//! | [`nms`] | boxes that no better one of their group overlaps |
//! | [`gather_slots`] | rows by index, zero above the count |
//! | [`select_candidates`] | (proposal, class) pairs above the score threshold, decoded |
//! | [`scale_boxes`] | boxes in pixels of another image size |
//! | [`pack_results`] | several results in one buffer |

mod anchor_grid;
mod decode_proposals;
mod gather_slots;
mod nms;
mod pack_results;
mod scale_boxes;
mod select_candidates;
pub(crate) mod support;
mod top_k;

pub use anchor_grid::{AnchorGridParams, AnchorLevel, anchor_grid};
pub use decode_proposals::{DecodeProposalsParams, DecodedProposals, decode_proposals};
pub use gather_slots::gather_slots;
pub use nms::{Kept, NmsParams, nms};
pub use pack_results::pack_results;
pub use scale_boxes::scale_boxes;
pub use select_candidates::{Candidates, SelectCandidatesParams, select_candidates};
pub use top_k::{TopK, top_k};
