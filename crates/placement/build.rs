//! Tells the programs and tests of a package where set-up puts the solver `HiGHS`. The packages whose programs or tests may contain it
//! share this script.

fn main() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    // Programs that run elsewhere learn it from their launcher.
    println!("cargo:rerun-if-env-changed=PACKHORSE_RPATH");
    let is_off = std::env::var_os("PACKHORSE_RPATH").is_some_and(|rpath| rpath == "off");
    // The place of libraries in a release archive.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    // Set in .cargo/config.toml.
    if let (Some(folder), false) = (std::env::var_os("PKG_CONFIG_PATH"), is_off) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
