//! cuDNN's convolutions against the definition, and its restrictions.
#![allow(non_snake_case, clippy::too_many_arguments, clippy::not_unsafe_ptr_arg_deref)]

mod api;
mod case;
#[path = "../common/mod.rs"]
mod common;
mod forward;
mod fused;
mod gradients;
mod restrictions;
