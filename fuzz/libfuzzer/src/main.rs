//! One target in libFuzzer: the one that the environment variable `PACKHORSE_FUZZ_TARGET` names.
#![no_main]

use std::{env, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use packhorse_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("PACKHORSE_FUZZ_TARGET").unwrap_or_default();
    let named = TARGETS.into_iter().find(|target| target.name == name);
    named.unwrap_or_else(|| panic!("PACKHORSE_FUZZ_TARGET: there is no target {name:?}"))
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
