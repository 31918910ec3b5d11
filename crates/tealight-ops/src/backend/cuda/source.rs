//! The CUDA source of kernels, embedded in the program.

/// Kernels that are compiled as one module: `kernel.cu` of an operation and the headers that it includes.
///
/// A constant beside the launches, so that an operation's kernels are named only in its own folder.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(feature = "cuda", all(test, feature = "emulator"))),
    expect(dead_code, reason = "only NVRTC reads the parts")
)]
pub(crate) struct Source {
    /// Unique: modules are cached under it, in memory and on disk.
    pub(super) name: &'static str,
    parts: &'static [&'static str],
}

impl Source {
    /// `parts` are headers first, then the kernels. All sources begin with `prelude.cuh`.
    pub(crate) const fn new(name: &'static str, parts: &'static [&'static str]) -> Self {
        Self { name, parts }
    }

    /// One translation unit: the parts after each other, without their `#include` lines, as NVRTC reads no files.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn text(&self) -> String {
        let parts = std::iter::once(&PRELUDE).chain(self.parts);
        let lines = parts.flat_map(|part| part.lines());
        lines
            .filter(|line| !line.starts_with("#include \""))
            .flat_map(|line| [line, "\n"])
            .collect()
    }
}

#[cfg(any(test, feature = "cuda"))]
const PRELUDE: &str = include_str!("prelude.cuh");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_prelude_and_the_parts_without_includes() {
        const KERNELS: &str = "#include \"ops/header.cuh\"\nKERNEL(k) {}\n";
        let text = Source::new("test", &["#define WIDTH 32", KERNELS]).text();
        assert!(text.starts_with(PRELUDE), "{text}");
        assert_eq!(text[PRELUDE.len()..], *"#define WIDTH 32\nKERNEL(k) {}\n");
    }
}
