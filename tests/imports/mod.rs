//! Who imports whom, and the circles among files and among rooms.
//!
//! A file imports another when it names something that the other defines, be it through a re-export. What a file uses of
//! the `mod.rs` of a folder that it lies in is the folder's contract, and what a `mod.rs` uses of the files below it is
//! their composition: neither counts.

use std::collections::{BTreeMap, BTreeSet};

/// A module's path from the root of the crate.
type Module = Vec<String>;

/// One file: its path relative to `src`, and its lines of code with their numbers.
pub struct File<'a> {
    pub path: &'a str,
    pub code: &'a [(usize, String)],
}

/// One import, of a module or of a room.
#[derive(Clone)]
struct Import {
    from: Module,
    to: Module,
    /// File and line.
    place: String,
}

/// Modules, or rooms, each of which imports itself by way of the others.
pub struct Circle {
    /// With slashes, in the order of the alphabet.
    pub members: Vec<String>,
    /// A shortest way round, with a place for every import.
    pub way: Vec<String>,
}

/// All circles: of files, then of rooms.
pub fn circles(files: &[File<'_>]) -> Vec<Circle> {
    let crate_ = Crate::read(files);
    let (mut of_files, mut of_rooms) = (Vec::new(), Vec::new());
    for (module, paths) in &crate_.paths {
        for named in paths {
            let target = crate_.defining(&named.path, 0);
            if module.starts_with(&target) || target.starts_with(module) {
                continue; // contract, composition, or itself
            }
            let import = |from: &[String], to: &[String]| Import {
                from: from.to_vec(),
                to: to.to_vec(),
                place: named.place.clone(),
            };
            of_files.push(import(module, &target));
            if module[0] != target[0] {
                of_rooms.push(import(&module[..1], &target[..1]));
            }
        }
    }
    [of_files, of_rooms].iter().flat_map(|imports| circles_of(imports)).collect()
}

fn circles_of(imports: &[Import]) -> Vec<Circle> {
    let mut parts: BTreeSet<&Module> = imports.iter().map(|import| &import.from).collect();
    let mut found = Vec::new();
    while let Some(part) = parts.pop_first() {
        let Some(round) = way(part, part, imports) else { continue };
        let turns = |other: &&Module| {
            way(part, other, imports).is_some() && way(other, part, imports).is_some()
        };
        let others: Vec<&Module> = parts.iter().copied().filter(turns).collect();
        parts.retain(|part| !others.contains(part));
        let step = |import: &Import| format!("{} imports {}", import.place, import.to.join("/"));
        found.push(Circle {
            members: [part].into_iter().chain(others).map(|part| part.join("/")).collect(),
            way: round.iter().map(step).collect(),
        });
    }
    found
}

/// The shortest chain of imports from a module to another, or back to itself.
fn way(from: &Module, to: &Module, imports: &[Import]) -> Option<Vec<Import>> {
    let mut ways: Vec<Vec<Import>> = vec![vec![]];
    let mut seen: BTreeSet<&Module> = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in &ways {
            let end = way.last().map_or(from, |import| &import.to);
            for import in imports.iter().filter(|import| import.from == *end) {
                let mut way = way.clone();
                way.push(import.clone());
                if import.to == *to {
                    return Some(way);
                }
                if seen.insert(&import.to) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

/// A path that a file names.
struct Named {
    /// From the root of the crate.
    path: Module,
    place: String,
}

struct Crate {
    modules: BTreeSet<Module>,
    /// What names are bound to in a module by `use`.
    bound: BTreeMap<Module, BTreeMap<String, Module>>,
    paths: Vec<(Module, Vec<Named>)>,
}

impl Crate {
    fn read(files: &[File<'_>]) -> Self {
        let modules: BTreeSet<Module> = files.iter().map(|file| module_of(file.path)).collect();
        let mut read = Self { modules, bound: BTreeMap::new(), paths: Vec::new() };
        for file in files {
            let module = module_of(file.path);
            let (mut named, mut bound) = (Vec::new(), BTreeMap::new());
            for (line, statement) in statements(file.code) {
                let place = format!("src/{}:{line}", file.path);
                if let Some(tree) = use_tree(&statement) {
                    for (path, name) in leaves(tree) {
                        let Some(path) = read.absolute(&module, &path) else { continue };
                        bound.insert(name, path.clone());
                        named.push(Named { path, place: place.clone() });
                    }
                } else {
                    let paths = inline_paths(&statement);
                    let paths = paths.iter().filter_map(|path| read.absolute(&module, path));
                    named.extend(paths.map(|path| Named { path, place: place.clone() }));
                }
            }
            read.bound.insert(module.clone(), bound);
            if !module.is_empty() {
                read.paths.push((module, named));
            }
        }
        read
    }

    /// A path from the root; `None` for what other crates define.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (module.clone(), &path[1..]),
            "super" => (module[..module.len().checked_sub(supers)?].to_vec(), &path[supers..]),
            first => {
                let child = [module.as_slice(), &[first.to_owned()]].concat();
                self.modules.contains(&child).then(|| (module.clone(), path))?
            }
        };
        let rest = rest.iter().filter(|part| *part != "self" && *part != "*");
        Some(base.into_iter().chain(rest.cloned()).collect())
    }

    /// The module that defines what a path leads to.
    fn defining(&self, path: &[String], depth: usize) -> Module {
        let mut module = Module::new();
        for (i, part) in path.iter().enumerate() {
            let child = [module.as_slice(), std::slice::from_ref(part)].concat();
            if self.modules.contains(&child) {
                module = child;
                continue;
            }
            let bound = self.bound.get(&module).and_then(|bound| bound.get(part));
            return match bound {
                Some(bound) if depth < 10 => {
                    self.defining(&[bound.as_slice(), &path[i + 1..]].concat(), depth + 1)
                }
                _ => module,
            };
        }
        module
    }
}

fn module_of(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" => Module::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// Lines, and whole `use` declarations, without those that only tests have.
fn statements(code: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut statements = Vec::new();
    let mut lines = code.iter();
    let mut for_tests = false;
    while let Some((number, line)) = lines.next() {
        let mut statement = line.trim().to_owned();
        if is_use(&statement) {
            while !statement.contains(';') {
                let Some((_, line)) = lines.next() else { break };
                statement.push_str(line.trim());
            }
        }
        if !for_tests {
            statements.push((*number, statement.clone()));
        }
        for_tests = statement == "#[cfg(test)]";
    }
    statements
}

fn is_use(statement: &str) -> bool {
    use_tree(statement).is_some()
}

/// What follows `use`, up to the semicolon.
fn use_tree(statement: &str) -> Option<&str> {
    let rest = match statement.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => statement,
    };
    Some(rest.strip_prefix("use ")?.split(';').next().unwrap_or_default())
}

/// Each path of a tree of imports, and the name that it is bound to.
fn leaves(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path: Vec<String> = path.trim().split("::").map(str::to_owned).collect();
        let last = path.iter().rev().find(|part| *part != "self").cloned().unwrap_or_default();
        let name = if name.is_empty() { last } else { name.trim().to_owned() };
        return vec![(path, name)];
    };
    let inner = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, 0);
    let ends = inner.char_indices().chain([(inner.len(), ',')]);
    for (at, character) in ends {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = inner[start..at].trim();
                if !branch.is_empty() {
                    found.extend(leaves(&format!("{}{branch}", prefix.trim())));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Paths that begin at the crate, here, or above, outside `use`.
fn inline_paths(line: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in line.match_indices(start) {
            let before = &line[..at];
            let visibility = before.ends_with("(in ");
            if visibility || before.ends_with("::") || before.ends_with(is_name) {
                continue;
            }
            let path: String = line[at..].chars().take_while(|&c| is_name(c) || c == ':').collect();
            paths.push(path.trim_end_matches(':').split("::").map(str::to_owned).collect());
        }
    }
    paths
}

#[test]
fn trees_of_imports_are_taken_apart() {
    let paths = |tree| -> Vec<String> {
        leaves(tree).iter().map(|(path, name)| format!("{}={name}", path.join("::"))).collect()
    };
    assert_eq!(paths("super::jpeg"), ["super::jpeg=jpeg"]);
    assert_eq!(
        paths("crate::a::{self, b::{C, D as E}, f}"),
        ["crate::a::self=a", "crate::a::b::C=C", "crate::a::b::D=E", "crate::a::f=f"]
    );
    assert_eq!(use_tree("pub(in crate::x) use a::b;"), Some("a::b"));
    assert_eq!(inline_paths("pub(in crate::x) fn f() -> crate::y::Z {"), [["crate", "y", "Z"]]);
}

#[test]
fn circles_are_found_through_reexports() {
    let file = |lines: &[&str]| -> Vec<(usize, String)> {
        lines.iter().enumerate().map(|(i, line)| (i + 1, (*line).to_owned())).collect()
    };
    let sources = [
        ("lib.rs", file(&["mod a;", "pub use a::Shape;"])),
        ("a/mod.rs", file(&["mod b;", "mod c;", "pub use b::Shape;", "pub struct Size;"])),
        ("a/b.rs", file(&["use super::Size;", "use super::c;"])),
        ("a/c/mod.rs", file(&["mod d;", "pub use d::f;", "pub fn g(shape: crate::Shape) {}"])),
        ("a/c/d.rs", file(&["fn f(size: crate::x::Side) {"])),
        ("a/e.rs", file(&["use super::{b, c};"])),
        ("x/mod.rs", file(&["mod y;", "mod z;", "pub use y::Side;"])),
        ("x/y.rs", file(&["pub struct Side;"])),
        ("x/z.rs", file(&["use crate::a::Size;"])),
    ];
    let files: Vec<File<'_>> =
        sources.iter().map(|(path, code)| File { path, code: code.as_slice() }).collect();
    let found = circles(&files);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].members, ["a/b", "a/c"]);
    assert_eq!(found[0].way, ["src/a/b.rs:2 imports a/c", "src/a/c/mod.rs:3 imports a/b"]);
    assert_eq!(found[1].members, ["a", "x"]);
    assert_eq!(found[1].way, ["src/a/c/d.rs:1 imports x", "src/x/z.rs:1 imports a"]);
}
