//! Hostile inputs: the whole corpus of the fuzz targets, including everything that fuzzing found.

mod targets;

use std::fs;
use std::path::Path;

use targets::TARGETS;

#[test]
fn nothing_that_was_found_is_fatal() -> std::io::Result<()> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let mut n = 0;
        for entry in fs::read_dir(corpora.join(name))? {
            let bytes = fs::read(entry?.path())?;
            target(&bytes);
            // Truncated and modified inputs must not panic, either.
            for i in (0..bytes.len()).step_by(bytes.len() / 20 + 1) {
                target(&bytes[..i]);
                let mut changed = bytes.clone();
                changed[i] ^= 1 << (i % 8);
                target(&changed);
            }
            n += 1;
        }
        assert!(n > 0, "there is nothing to begin `{name}` with");
    }
    Ok(())
}
