//! The structure of the source, as a test: who imports whom, what has one home, what must not appear where.
//!
//! A failure says where the thing belongs. `ARCHITECTURE.md` states the same rules in prose.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files longer than this need a reason.
const MAX_LINES: usize = 500;

/// Which rooms of the crate a room may import. `error` is open to all.
const IMPORTS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("memory", &[]),
    ("progress", &[]),
    ("section", &[]),
    ("device", &["ops"]),
    ("ops", &[]),
    ("structures", &["ops"]),
    ("image_input", &["structures"]),
    ("layers", &["ops"]),
    ("transform", &["image_input", "ops", "section", "structures"]),
    ("anchor_utils", &["ops", "section", "structures"]),
    ("backbone", &["layers", "ops", "section", "structures"]),
    ("targets", &["ops", "structures"]),
    ("postprocess", &["ops", "section", "structures"]),
    ("architecture", &["postprocess", "structures", "targets"]),
    ("rcnn", ARCHITECTURES),
    ("dense", ARCHITECTURES),
    ("checkpoint", &["progress", "section"]),
    (
        "config",
        &[
            "architecture",
            "backbone",
            "checkpoint",
            "dense",
            "postprocess",
            "rcnn",
            "section",
            "structures",
            "transform",
        ],
    ),
    (
        "network",
        &[
            "architecture",
            "backbone",
            "config",
            "postprocess",
            "rcnn",
            "structures",
            "targets",
            "transform",
        ],
    ),
    (
        "detector",
        &[
            "checkpoint",
            "config",
            "image_input",
            "network",
            "ops",
            "postprocess",
            "progress",
            "structures",
            "transform",
        ],
    ),
    ("dataset", &["image_input", "structures"]),
    ("eval", &["dataset", "detector", "image_input", "progress", "structures", "config"]),
    (
        "train",
        &[
            "checkpoint",
            "config",
            "dataset",
            "image_input",
            "network",
            "ops",
            "structures",
            "targets",
            "transform",
        ],
    ),
    ("visualize", &["config", "structures"]),
];

/// What rooms of architectures may import: neither each other nor what puts them together.
const ARCHITECTURES: &[&str] = &[
    "anchor_utils",
    "architecture",
    "layers",
    "ops",
    "postprocess",
    "section",
    "structures",
    "targets",
];

/// What the crate re-exports at its root, and the room it belongs to.
const REEXPORTS: &[(&str, &str)] = &[
    ("DetectionNetwork", "network"),
    ("Detector", "detector"),
    ("DetectorBuilder", "detector"),
    ("DecodeOptions", "image_input"),
    ("Error", "error"),
    ("Event", "progress"),
    ("Execution", "detector"),
    ("ImageInput", "image_input"),
    ("NetworkBuilder", "network"),
    ("Orientation", "image_input"),
    ("Progress", "progress"),
    ("Result", "error"),
    ("Settings", "detector"),
    ("Silent", "progress"),
    ("Weights", "detector"),
];

/// Rooms whose data lies on the device: a tensor made from host values there is a hidden upload, a value read is a stop.
const DEVICE_ROOMS: &[&str] = &[
    "anchor_utils",
    "architecture",
    "backbone",
    "dense",
    "layers",
    "network",
    "postprocess",
    "rcnn",
    "targets",
    "transform",
];

/// Candle's constructors from host data, and its downloads.
const HOST_TRAFFIC: &[&str] = &[
    "Tensor::new(",
    "Tensor::from_vec(",
    "Tensor::from_slice(",
    "Tensor::arange",
    "Tensor::from_iter(",
    ".to_vec0",
    ".to_vec1",
    ".to_vec2",
    ".to_vec3",
    ".to_scalar",
];

struct Source {
    /// Relative to `src`, with forward slashes.
    path: String,
    /// Without comments, and without what `#[cfg(test)]` adds at the end.
    code: Vec<(usize, String)>,
    lines: usize,
}

impl Source {
    fn room(&self) -> &str {
        self.path.split('/').next().unwrap().trim_end_matches(".rs")
    }

    fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap();
        matches!(name, "tests.rs" | "reference.rs" | "testing.rs") || self.path.contains("/tests/")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    let source_root = root().join("src");
    let mut files = Vec::new();
    rust_files(&source_root, &mut files);
    files.sort();
    files
        .iter()
        .map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let mut lines: Vec<(usize, &str)> =
                text.lines().enumerate().map(|(i, line)| (i + 1, line)).collect();
            let test_module = lines.windows(2).position(|pair| {
                pair[0].1 == "#[cfg(test)]"
                    && pair[1].1.starts_with("mod ")
                    && pair[1].1.ends_with('{')
            });
            lines.truncate(test_module.unwrap_or(lines.len()));
            let code = lines.iter().map(|(number, line)| (*number, without_comment(line)));
            Source {
                path: file.strip_prefix(&source_root).unwrap().to_str().unwrap().replace('\\', "/"),
                code: code.collect(),
                lines: text.lines().count(),
            }
        })
        .collect()
}

/// Keeps the `// invariant:` mark, which allows what would otherwise be refused.
fn without_comment(line: &str) -> String {
    match line.find("//") {
        Some(_) if line.contains("// invariant:") => line.to_owned(),
        // A URL inside a string is not a comment.
        Some(at) if !line[..at].ends_with(':') => line[..at].to_owned(),
        _ => line.to_owned(),
    }
}

#[track_caller]
fn assert_none(faults: Vec<String>, advice: &str) {
    assert!(faults.is_empty(), "{advice}\n  {}", faults.join("\n  "));
}

#[test]
fn rooms_import_only_what_their_row_allows() {
    let allowed: BTreeMap<&str, &[&str]> = IMPORTS.iter().copied().collect();
    let reexports: BTreeMap<&str, &str> = REEXPORTS.iter().copied().collect();
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| s.path != "lib.rs" && !s.is_test()) {
        let room = source.room();
        let Some(row) = allowed.get(room) else {
            faults.push(format!("src/{} is in no row of IMPORTS", source.path));
            continue;
        };
        for (number, line) in &source.code {
            for part in line.split("crate::").skip(1) {
                let name: String =
                    part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let target = reexports.get(name.as_str()).copied().unwrap_or(&name);
                if !target.is_empty()
                    && target != room
                    && target != "error"
                    && !row.contains(&target)
                {
                    faults.push(format!("src/{}:{number} imports {target}", source.path));
                }
            }
        }
    }
    assert_none(
        faults,
        "data flows one way; move what is shared to `structures` or `ops::support`:",
    );
}

#[test]
fn imports_run_in_no_circles() {
    let sources = sources();
    let files: Vec<imports::File<'_>> = sources
        .iter()
        .filter(|source| !source.is_test())
        .map(|source| imports::File { path: &source.path, code: &source.code })
        .collect();
    let faults = imports::circles(&files)
        .iter()
        .map(|circle| format!("{}:\n    {}", circle.members.join(", "), circle.way.join("\n    ")))
        .collect();
    assert_none(faults, "move what both need to a file that imports neither:");
}

#[test]
fn ops_do_not_call_ops() {
    let sources = sources();
    let ops: BTreeSet<&str> = sources
        .iter()
        .filter_map(|s| s.path.strip_prefix("ops/")?.split_once('/').map(|(op, _)| op))
        .filter(|op| *op != "support")
        .collect();
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| s.path.starts_with("ops/") && !s.is_test()) {
        let own = source.path.split('/').nth(1).unwrap();
        for (number, line) in &source.code {
            let imports = |op: &&&str| {
                **op != own
                    && (line.contains(&format!("ops::{op}::"))
                        || line.contains(&format!("super::{op}::")))
            };
            if own != "mod.rs"
                && let Some(op) = ops.iter().find(imports)
            {
                faults.push(format!("src/{}:{number} uses {op}", source.path));
            }
        }
    }
    assert_none(
        faults,
        "ops don't call ops: compose them in a room, or share a formula in `ops::support`:",
    );
}

#[test]
fn every_op_is_complete_and_listed() {
    let table = std::fs::read_to_string(root().join("src/ops/mod.rs")).unwrap();
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(root().join("src/ops")).unwrap() {
        let folder = entry.unwrap().path();
        let op = folder.file_name().unwrap().to_str().unwrap().to_owned();
        if !folder.is_dir() || op == "support" {
            continue;
        }
        for file in ["mod.rs", "tests.rs"] {
            if !folder.join(file).exists() && !folder.join("tests").exists() {
                faults.push(format!("src/ops/{op} has no {file}"));
            }
        }
        if !table.contains(&format!("//! | [`{op}`]")) {
            faults.push(format!("{op} is not in the table of src/ops/mod.rs"));
        }
    }
    assert_none(faults, "an op has a contract, tests, and a line in the table:");
}

#[test]
fn files_have_one_subject() {
    let faults = sources()
        .iter()
        .filter(|source| source.lines > MAX_LINES)
        .map(|source| format!("src/{} has {} lines", source.path, source.lines))
        .collect();
    assert_none(faults, "a file over 500 lines has more than one subject; split it:");
}

#[test]
fn device_rooms_neither_upload_nor_download() {
    let faults = lines_with(HOST_TRAFFIC, |source| DEVICE_ROOMS.contains(&source.room()));
    assert_none(
        faults,
        "compute on the device: `ops::anchor_grid`, shape scalars as arguments, `pack_results` once:",
    );
}

#[test]
fn library_does_not_panic_on_input() {
    let panics = [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "unreachable!("];
    let faults = lines_with(&panics, |_| true);
    assert_none(
        faults,
        "return an error that names the culprit, or say `// invariant: why it can't happen`:",
    );
}

#[test]
fn library_does_not_print() {
    let faults = lines_with(&["println!(", "eprintln!(", "print!(", "dbg!("], |_| true);
    assert_none(faults, "report through `Progress`, or return it:");
}

#[test]
fn unsafe_stays_in_kernels_and_maps() {
    let may = |source: &Source| matches!(source.room(), "ops" | "checkpoint" | "memory");
    let faults = lines_with(&["unsafe "], |source| !may(source));
    assert_none(
        faults,
        "unsafe code belongs into the kernels of ops, the memory map of checkpoint, and the allocator:",
    );
}

#[test]
fn public_functions_take_no_flags() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.is_test()) {
        let text: String = source.code.iter().map(|(_, line)| format!("{line}\n")).collect();
        for signature in text.split("pub fn ").skip(1) {
            let end = signature.find('{').unwrap_or(signature.len());
            let parameters = signature[..end].split("->").next().unwrap_or_default();
            if parameters.contains(": bool") {
                let name = signature.split(['(', '<']).next().unwrap_or_default();
                faults.push(format!("src/{}: {name}", source.path));
            }
        }
    }
    assert_none(faults, "replace the flag by an enum, or by two functions:");
}

#[test]
fn the_iou_formula_has_one_home() {
    let faults = lines_with(&["- intersection)"], |source| {
        source.path != "ops/support/geometry.rs" && source.room() != "eval"
    });
    assert_none(faults, "use `ops::support::geometry::iou`:");
}

#[test]
fn errors_have_no_catch_all() {
    let text = std::fs::read_to_string(root().join("src/error.rs")).unwrap();
    assert!(!text.contains("Other("), "an error names its culprit; add a variant");
}

#[test]
fn readme_and_manuals_list_every_model() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let readme = read("README.md");
    let mut faults = Vec::new();
    for name in candle_detection::config::names() {
        let config = candle_detection::config::get(name).unwrap();
        for weights in &config.weights {
            let figures = [weights.box_ap, weights.mask_ap, weights.keypoint_ap];
            let millions = format!("{:.1} M", weights.parameters as f64 / 1e6);
            let cells = [format!("`{name}`"), format!("`{}`", weights.version), millions];
            let figures = figures.iter().flatten().map(|figure| format!("{figure:.1}"));
            let cells: Vec<String> =
                cells.into_iter().chain(figures).map(|cell| format!("| {cell} |")).collect();
            if !readme.lines().any(|row| cells.iter().all(|cell| row.contains(cell))) {
                faults.push(format!("README.md has no row with the cells {cells:?}"));
            }
        }
    }
    for example in ["detect", "convert", "evaluate"] {
        if !readme.contains(&format!("--example {example}")) {
            faults.push(format!("README.md does not show the example {example}"));
        }
    }
    let architecture = read("ARCHITECTURE.md");
    for (room, _) in IMPORTS {
        if !architecture.contains(&format!("`{room}`")) {
            faults.push(format!("ARCHITECTURE.md does not mention {room}"));
        }
    }
    assert_none(faults, "the documents must follow the files:");
}

fn lines_with(patterns: &[&str], applies: impl Fn(&Source) -> bool) -> Vec<String> {
    let sources = sources();
    let mut faults = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test() && applies(source)) {
        for (number, line) in &source.code {
            let hit = patterns.iter().find(|pattern| line.contains(**pattern));
            if let Some(pattern) = hit
                && !line.contains("// invariant:")
            {
                faults.push(format!("src/{}:{number}: {pattern}", source.path));
            }
        }
    }
    faults
}
