//! Writes any checkpoint of a torchvision detector as safetensors with the names of today.
//!
//! ```text
//! cargo run --release --example convert -- maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth out.safetensors --dtype f16
//! ```

use std::path::PathBuf;

use anyhow::Result;
use candle_detection::checkpoint::{Checkpoint, Precision, write_safetensors};
use clap::{Parser, ValueEnum};

/// Writes a .safetensors, .pth (zip) or .pth (legacy) file as safetensors with today's names.
#[derive(Parser)]
struct Arguments {
    /// The file to read; its format is recognised by content.
    input: PathBuf,
    /// The safetensors file to write; may be the input.
    output: PathBuf,
    /// Type of the floats; each tensor keeps its own when absent.
    #[arg(long)]
    dtype: Option<Dtype>,
    /// Dotted path of the state dict in the checkpoint, where it is in an unusual place.
    #[arg(long)]
    key: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Dtype {
    F32,
    F16,
    Bf16,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let checkpoint = match &arguments.key {
        Some(key) => Checkpoint::open_under(&arguments.input, key)?,
        None => Checkpoint::open(&arguments.input)?,
    };
    let precision = match arguments.dtype {
        None => Precision::AsStored,
        Some(Dtype::F32) => Precision::F32,
        Some(Dtype::F16) => Precision::F16,
        Some(Dtype::Bf16) => Precision::BF16,
    };
    println!("{}: {}", arguments.input.display(), checkpoint.format());
    if let Some(wrapper) = checkpoint.wrapper() {
        println!("  state dict under `{wrapper}`");
    }
    if let Some(prefix) = checkpoint.prefix() {
        println!("  prefix `{prefix}` stripped");
    }
    if checkpoint.renamed() > 0 {
        println!("  {} names of 2019 brought up to date", checkpoint.renamed());
    }
    if !checkpoint.ignored().is_empty() {
        println!("  entries that are no tensors left out: {}", checkpoint.ignored().join(", "));
    }

    let written = write_safetensors(&checkpoint, &arguments.output, precision)?;
    if !written.dropped.is_empty() {
        println!(
            "  {} counters (num_batches_tracked) dropped: inference has no use for them",
            written.dropped.len()
        );
    }
    println!(
        "{}: {} tensors, {}, {} bytes",
        arguments.output.display(),
        written.tensors,
        written.dtypes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        written.bytes
    );
    Ok(())
}
