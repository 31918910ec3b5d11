//! Imports follow the layers that ARCHITECTURE.md lists under "## Layers": per crate its top-level
//! modules, lowest first.
//!
//! The sources are scanned as text, without comments, literals and test code. A path that starts with
//! `crate`, `super` or `self` is a reference; re-exports are followed to the module that defines the item.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;

/// The segments of a path below the crate root.
type Segments = Vec<String>;

/// A source file of a crate.
struct Source {
    file: String,
    module: Segments,
    /// The text, with everything that is skipped replaced by spaces.
    code: String,
}

/// A path in a source file.
struct Reference {
    /// `file:line`
    place: String,
    module: Segments,
    path: Segments,
    /// The imported name of a `use` declaration.
    name: Option<String>,
}

#[test]
fn imports_follow_the_layers_of_the_architecture() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let layers = layers(&fs::read_to_string(root.join("ARCHITECTURE.md"))?);
    let mut violations = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let mut files = Vec::new();
        collect(&root.join("crates").join(&name).join("src"), "", &mut files)?;
        let files: Vec<(&str, &str)> =
            files.iter().map(|(f, t)| (f.as_str(), t.as_str())).collect();
        violations.extend(check(&name, layers.get(&name), &files));
    }
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    Ok(())
}

/// The lines `crate: lowest < … < highest` of the block under "## Layers".
fn layers(architecture: &str) -> BTreeMap<String, Vec<String>> {
    let block =
        architecture.split("\n## Layers\n").nth(1).and_then(|rest| rest.split("```").nth(1));
    let lines = block.unwrap_or_default().lines().filter_map(|line| line.split_once(':'));
    let names = |list: &str| list.split('<').map(|name| name.trim().to_owned()).collect();
    lines.map(|(name, list)| (name.to_owned(), names(list))).collect()
}

/// All files below `folder`: path within `src`, and text.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push((name, fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The violations of a crate, given its layers and its files.
fn check(name: &str, layers: Option<&Vec<String>>, files: &[(&str, &str)]) -> Vec<String> {
    let sources = sources(files);
    let modules: BTreeSet<&Segments> = sources.iter().map(|source| &source.module).collect();
    let macros: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| source.code.split("macro_rules! ").skip(1))
        .map(|definition| &definition[..word_length(definition)])
        .collect();
    let references: Vec<Reference> =
        sources.iter().flat_map(|source| references(source, &modules)).collect();
    let resolver = Resolver::new(&modules, &references);
    let mut violations = Vec::new();

    let top: BTreeSet<&String> = modules.iter().filter_map(|module| module.first()).collect();
    if let Some(layers) = layers {
        for module in top.iter().filter(|module| !layers.contains(module)) {
            violations.push(format!("{name}: module `{module}` is missing under \"## Layers\""));
        }
        for layer in layers.iter().filter(|layer| !top.contains(layer)) {
            violations.push(format!("{name}: layer `{layer}` is not a module"));
        }
    } else {
        violations.push(format!("{name}: the crate is missing under \"## Layers\""));
    }

    let height = |module: &str| layers?.iter().position(|layer| layer == module);
    let mut edges = BTreeMap::new();
    for Reference { place, module, path, .. } in &references {
        let place = format!("crates/{name}/src/{place}");
        let item = path.first().filter(|first| !top.contains(first));
        if let (Some(item), false) = (item, module.is_empty())
            && !macros.contains(item.as_str())
        {
            let rule = "import it from the module that defines it";
            violations.push(format!("{place}: `{item}` comes from the crate root; {rule}"));
        }
        let target = resolver.definition(path);
        let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
        let (Some(from), Some(to)) = (module.get(common), target.get(common)) else { continue };
        if common > 0 {
            let folder = module[..common].join("::");
            edges.entry((folder, from.clone(), to.clone())).or_insert(place);
        } else if let (Some(low), Some(high)) = (height(from), height(to))
            && low <= high
        {
            violations
                .push(format!("{place}: layer `{from}` imports from the higher layer `{to}`"));
        }
    }
    for ((folder, from, to), place) in &edges {
        if is_reachable(&edges, folder, to, from) {
            violations
                .push(format!("{place}: `{from}` imports `{to}` in a cycle within `{folder}`"));
        }
    }
    violations
}

/// Whether the modules of `folder` import each other so that `from` leads to `to`.
fn is_reachable(
    edges: &BTreeMap<(String, String, String), String>,
    folder: &str,
    from: &str,
    to: &str,
) -> bool {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![from]);
    while let Some(module) = pending.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            let next = edges.keys().filter(|(place, a, _)| place == folder && a == module);
            pending.extend(next.map(|(_, _, b)| b.as_str()));
        }
    }
    false
}

/// Finds the module that defines an item.
struct Resolver<'a> {
    modules: &'a BTreeSet<&'a Segments>,
    /// Imports by module and name. Private ones count, too: child modules can see them.
    imports: BTreeMap<(&'a Segments, &'a str), &'a Segments>,
}

impl<'a> Resolver<'a> {
    fn new(modules: &'a BTreeSet<&'a Segments>, references: &'a [Reference]) -> Self {
        let named = references.iter().filter_map(|reference| {
            Some(((&reference.module, reference.name.as_deref()?), &reference.path))
        });
        Self { modules, imports: named.collect() }
    }

    fn definition(&self, path: &Segments) -> Segments {
        let mut path = path.clone();
        // The limit ends cycles of re-exports.
        for _ in 0..8 {
            let is_module = |n: &usize| self.modules.contains(&path[..*n].to_vec());
            let length = (0..=path.len()).rev().find(is_module).unwrap_or(0);
            let module = path[..length].to_vec();
            let Some(item) = path.get(length) else { return module };
            match self.imports.get(&(&module, item.as_str())) {
                Some(target) if **target != path => {
                    path = [target, &path[length + 1..]].concat();
                }
                _ => return module,
            }
        }
        path
    }
}

/// The files without test modules.
fn sources(files: &[(&str, &str)]) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut test_modules = Vec::new();
    for (file, text) in files {
        let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
        let is_root = matches!(stem, "lib" | "main");
        let module: Segments =
            if is_root { Vec::new() } else { stem.split('/').map(str::to_owned).collect() };
        let (code, tests) = without_tests(&without_comments_and_literals(text));
        test_modules.extend(tests.into_iter().map(|test| [&module[..], &[test]].concat()));
        sources.push(Source { file: (*file).to_owned(), module, code });
    }
    sources.retain(|source| !test_modules.iter().any(|test| source.module.starts_with(test)));
    sources
}

fn without_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let (mut code, mut at) = (String::with_capacity(text.len()), 0);
    while at < chars.len() {
        let length = skipped_length(&chars[at..]);
        if length == 0 {
            code.push(if chars[at].is_ascii() { chars[at] } else { ' ' });
        }
        let blank = chars[at..at + length].iter().map(|&c| if c == '\n' { '\n' } else { ' ' });
        code.extend(blank);
        at += length.max(1);
    }
    code
}

/// The length of the comment or literal that `text` starts with; 0 if it starts with neither.
fn skipped_length(text: &[char]) -> usize {
    let until = |end: &[char], from: usize| {
        let found = text[from..].windows(end.len()).position(|window| window == end);
        found.map_or(text.len(), |at| from + at + end.len())
    };
    match text {
        ['/', '/', ..] => text.iter().position(|&c| c == '\n').unwrap_or(text.len()),
        ['/', '*', ..] => until(&['*', '/'], 2),
        ['r', '"' | '#', ..] => {
            let hashes = text[1..].iter().take_while(|&&c| c == '#').count();
            let end = [&['"'][..], &vec!['#'; hashes]].concat();
            if text.get(1 + hashes) == Some(&'"') { until(&end, 2 + hashes) } else { 0 }
        }
        [quote @ '"', ..] | [quote @ '\'', '\\', ..] => {
            let mut at = 1;
            while at < text.len() && text[at] != *quote {
                at += if text[at] == '\\' { 2 } else { 1 };
            }
            (at + 1).min(text.len())
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

/// Blanks the items with `#[cfg(test)]`; returns the names of test modules in files of their own, too.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut code, mut modules) = (code.to_owned(), Vec::new());
    for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
        while let Some(start) = code.find(attribute) {
            let opening = start + code[start..].find(['{', ';']).unwrap_or(0);
            let end = if code[opening..].starts_with('{') {
                block_end(&code, opening)
            } else {
                opening + 1
            };
            if let Some((_, name)) = code[start..opening].split_once("mod ") {
                modules.push(name.trim().to_owned());
            }
            let blank = code[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' });
            code.replace_range(start..end, &blank.collect::<String>());
        }
    }
    (code, modules)
}

/// The end of the block whose brace is at `opening`.
fn block_end(code: &str, opening: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[opening..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return opening + at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// All references of a source file to modules and items of its crate.
fn references(source: &Source, modules: &BTreeSet<&Segments>) -> Vec<Reference> {
    let code = &source.code;
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(gap) = code[at..].find(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        at += gap;
        let word = &code[at..at + word_length(&code[at..])];
        let before = code[..at].trim_end();
        let is_use = before.ends_with("use");
        let is_path = code[at + word.len()..].starts_with("::") && !before.ends_with([':', '$']);
        let is_local = matches!(word, "crate" | "super" | "self") && !before.ends_with("(in");
        let is_child = || modules.contains(&[&source.module[..], &[word.to_owned()]].concat());
        if is_path && (is_local || is_use && is_child()) {
            let mut paths = Vec::new();
            at = tree(code, at, &[], &mut paths);
            let module = inner_module(source, at);
            for (offset, path, name) in paths {
                let place = format!("{}:{}", source.file, code[..offset].matches('\n').count() + 1);
                let name = is_use.then_some(name);
                let path = absolute(&module, &path);
                found.push(Reference { place, module: source.module.clone(), path, name });
            }
        } else {
            at += word.len();
        }
    }
    found
}

/// The paths of a `use` tree or an expression, with their offsets and imported names. Returns the end.
fn tree(
    code: &str,
    start: usize,
    prefix: &[String],
    paths: &mut Vec<(usize, Segments, String)>,
) -> usize {
    let (mut path, mut at) = (prefix.to_vec(), start);
    loop {
        let length = word_length(&code[at..]).max(usize::from(code[at..].starts_with('*')));
        path.push(code[at..at + length].to_owned());
        at += length;
        if code[at..].starts_with("::{") {
            at += "::{".len();
            loop {
                at += code[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(0);
                if code[at..].starts_with('}') {
                    return at + 1;
                }
                at = tree(code, at, &path, paths);
            }
        }
        let continues =
            code[at..].starts_with("::*") || word_length(code[at..].get(2..).unwrap_or("")) > 0;
        if !code[at..].starts_with("::") || !continues {
            break;
        }
        at += "::".len();
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if let Some(alias) = code[at..].strip_prefix(" as ") {
        alias[..word_length(alias)].clone_into(&mut name);
        at += " as ".len() + name.len();
    }
    paths.push((start, path, name));
    at
}

/// The module at an offset: that of the file, or a module with a body in it.
fn inner_module(source: &Source, offset: usize) -> Segments {
    let mut module = source.module.clone();
    for (at, _) in source.code[..offset].match_indices("mod ") {
        let name = &source.code[at + 4..at + 4 + word_length(&source.code[at + 4..])];
        let opening = at + 4 + name.len() + 1;
        if source.code[opening..].starts_with('{') && block_end(&source.code, opening) > offset {
            module.push(name.to_owned());
        }
    }
    module
}

/// The path below the crate root of a path in `module`.
fn absolute(module: &[String], path: &[String]) -> Segments {
    let mut absolute = if path[0] == "crate" { Vec::new() } else { module.to_vec() };
    for segment in path {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => drop(absolute.pop()),
            _ => absolute.push(segment.clone()),
        }
    }
    absolute
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Checks a crate of the layers `low < high`, to which `files` are added.
fn violations(files: &[(&str, &str)]) -> Vec<String> {
    let layers = vec!["low".to_owned(), "high".to_owned()];
    let all = [&[("lib.rs", "mod low;\nmod high;\n")], files].concat();
    check("made_up", Some(&layers), &all)
}

const LOW: (&str, &str) = ("low.rs", "pub struct Low;\n");
const HIGH: (&str, &str) = ("high/mod.rs", "use crate::low::Low;\nmod a;\nmod b;\n");

#[test]
fn imports_from_lower_layers_are_permitted() {
    let a = ("high/a.rs", "use super::b::B;\nfn f(low: crate::low::Low) {}\n");
    let b = ("high/b.rs", "pub struct B;\nuse super::Low;\n");
    assert_eq!(violations(&[LOW, HIGH, a, b]), Vec::<String>::new());
}

#[test]
fn a_layer_may_not_import_from_a_higher_one() {
    for path in ["use crate::high::High;", "use super::{high::a, std};", "type A = crate::high::A;"]
    {
        let found = violations(&[("low.rs", &format!("\n{path}\n")), HIGH]);
        assert!(
            found[0].starts_with("crates/made_up/src/low.rs:2: layer `low` imports from the"),
            "{found:?}"
        );
    }
}

#[test]
fn a_module_must_be_listed_and_a_layer_must_exist() {
    let found = violations(&[LOW, ("other.rs", "")]);
    assert_eq!(
        found,
        [
            "made_up: module `other` is missing under \"## Layers\"",
            "made_up: layer `high` is not a module"
        ]
    );
    assert_eq!(check("made_up", None, &[]), ["made_up: the crate is missing under \"## Layers\""]);
}

#[test]
fn siblings_may_not_import_each_other_in_a_cycle() {
    let a = ("high/a.rs", "use super::b::c::C;\n");
    let c = ("high/b/c.rs", "pub struct C;\nuse crate::high::A;\n");
    let exported = ("high/mod.rs", "mod a;\nmod b;\npub use a::A;\n");
    let found = violations(&[LOW, exported, a, ("high/b/mod.rs", "pub mod c;\n"), c]);
    assert_eq!(
        found,
        [
            "crates/made_up/src/high/a.rs:1: `a` imports `b` in a cycle within `high`",
            "crates/made_up/src/high/b/c.rs:2: `b` imports `a` in a cycle within `high`"
        ]
    );
}

#[test]
fn an_item_may_not_be_imported_through_the_crate_root() {
    let macros = "macro_rules! choice { () => {} }\npub(crate) use choice;\n";
    let low = format!("{macros}pub(in crate::low) struct Low;\n");
    let high = "use crate::{Low, choice};\ncrate::choice!();\nuse super::Low as L;\n";
    let found = violations(&[("low.rs", &low), ("high.rs", high)]);
    let rule = "`Low` comes from the crate root; import it from the module that defines it";
    let expected = [1, 3].map(|line| format!("crates/made_up/src/high.rs:{line}: {rule}"));
    assert_eq!(found, expected);
}

#[test]
fn comments_literals_and_tests_are_skipped() {
    let low = "// crate::high::A\n/* use crate::high::A; */\nconst A: &str = \"crate::high\\\"::A\";\n\
               const B: &str = r#\"\"crate::high::A\"#;\nconst C: char = '\"';\nfn f<'a>(_: &'a str) {}\n\
               #[cfg(test)]\nmod tests {\n    use crate::high::A;\n}\n#[cfg(test)]\nmod more;\n";
    let more = ("low/more.rs", "use crate::high::A;\n");
    assert_eq!(violations(&[("low.rs", low), more, HIGH]), Vec::<String>::new());
}

#[test]
fn the_list_is_read_from_the_architecture() {
    let text = "# A\n\n## Layers\n\nProse.\n\n```text\none: a < b\ntwo:  c\n```\n\n## More\n";
    let read = layers(text);
    assert_eq!(read["one"], ["a", "b"]);
    assert_eq!(read["two"], ["c"]);
    assert_eq!(read.len(), 2);
}
