//! Entry points without an emulation; build.rs makes them from stub-names.txt.
include!(concat!(env!("OUT_DIR"), "/placeholders.rs"));
