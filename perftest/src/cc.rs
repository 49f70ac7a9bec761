//! `symrail cc` and `symrail c++`: compilers that find OpenSHMEM's headers and library; and the names that other
//! OpenSHMEM implementations use for such tools.
//!
//! The command looks for the headers and the library around this executable: in the prefix that it is installed in, or
//! in the tree that it was built in. A program gets the library's folder as its run path.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of `symrail cc` and `symrail c++`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The compiler's arguments; `--show` alone or in front prints the command instead of running it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// The language, which selects the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// C: `$SHMEM_CC`, or `cc`.
    C,
    /// C++: `$SHMEM_CXX`, or `c++`.
    Cxx,
}

/// The folders of headers and library.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    include: PathBuf,
    library: PathBuf,
}

/// Executes the compiler in place of this process. Returns, with an exit code, only if that fails.
pub fn main(args: &Args, language: Language) -> i32 {
    let exe = std::env::current_exe().and_then(std::fs::canonicalize);
    let Some(places) = exe.as_deref().ok().and_then(places) else {
        eprintln!(
            "symrail: no shmem.h and libsymrail.so around {}; install them there",
            exe.unwrap_or_default().display()
        );
        return 1;
    };
    let (variable, usual) = if language == Language::C { ("SHMEM_CC", "cc") } else { ("SHMEM_CXX", "c++") };
    let compiler = std::env::var_os(variable).unwrap_or_else(|| usual.into());
    let show = args.arguments.first().is_some_and(|first| first == "--show" || first == "-show");
    let given = args.arguments.get(usize::from(show)..).unwrap_or(&[]);
    let all = arguments(given, &places);
    if show {
        let words: Vec<_> = all.iter().map(|word| word.to_string_lossy()).collect();
        println!("{} {}", compiler.to_string_lossy(), words.join(" "));
        return 0;
    }
    let error = Command::new(&compiler).args(all).exec();
    eprintln!("symrail: {} ({variable}) cannot be started: {error}", compiler.to_string_lossy());
    1
}

/// The compiler's arguments: the given ones, and those for headers and library.
fn arguments(given: &[OsString], places: &Places) -> Vec<OsString> {
    let mut all = vec![with("-I", &places.include)];
    all.extend_from_slice(given);
    let stops_before_linking =
        |word: &OsString| ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"].iter().any(|stop| word == stop);
    if !given.iter().any(stops_before_linking) {
        all.extend([with("-L", &places.library), with("-Wl,-rpath,", &places.library), "-lsymrail".into()]);
    }
    all
}

fn with(flag: &str, path: &Path) -> OsString {
    let mut word = OsString::from(flag);
    word.push(path);
    word
}

/// Installed: `bin/symrail`, `include/shmem.h`, `lib/libsymrail.so`. Built: `target/<profile>/symrail` with the library
/// next to it, and the headers in `shmem/include`.
fn places(exe: &Path) -> Option<Places> {
    let folder = exe.parent()?;
    let installed = || {
        let prefix = folder.parent()?;
        Some(Places { include: prefix.join("include"), library: prefix.join("lib") })
    };
    let built = || {
        let include = exe.ancestors().map(|above| above.join("shmem/include")).find(|include| include.is_dir())?;
        Some(Places { include, library: folder.to_path_buf() })
    };
    let complete = |p: &Places| p.include.join("shmem.h").is_file() && p.library.join("libsymrail.so").is_file();
    installed().filter(complete).or_else(|| built().filter(complete))
}

/// The command line, adapted to the name that the program was called by: `oshcc`, `oshc++`, `oshrun`, `symrailcc`,
/// `symrailc++` and `symrailrun` are links to this executable.
pub fn command_line(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_default();
    let called = Path::new(&name).file_name().and_then(OsStr::to_str).unwrap_or("");
    let tool = called.strip_prefix("osh").or_else(|| called.strip_prefix("symrail"));
    let mut line = vec![name.clone()];
    match tool {
        Some("cc") => line.push("cc".into()),
        Some("c++" | "cxx" | "CC") => line.push("c++".into()),
        Some("run") => {
            line.push("run".into());
            line.extend(counted(words.by_ref()));
        }
        Some("") => {
            let command = words.next();
            let runs = command.as_ref().is_some_and(|command| command == "run");
            line.extend(command);
            if runs {
                line.extend(counted(words.by_ref()));
            }
        }
        _ => {}
    }
    line.extend(words);
    line
}

/// Converts `-np` and `--np`, the spelling of MPI and OpenSHMEM launchers, to `-n`.
fn counted(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut options = true;
    words.map(move |word| {
        let count = options && (word == "-np" || word == "--np");
        options &= word.to_str().is_some_and(|w| w.starts_with('-') && w != "--" || w.parse::<u32>().is_ok());
        if count { "-n".into() } else { word }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn names_choose_the_tool() {
        assert_eq!(command_line(words("/usr/bin/oshcc -c a.c")), words("/usr/bin/oshcc cc -c a.c"));
        assert_eq!(command_line(words("symrailc++ a.cpp")), words("symrailc++ c++ a.cpp"));
        assert_eq!(command_line(words("oshrun -np 4 ./a -np 3")), words("oshrun run -n 4 ./a -np 3"));
        assert_eq!(command_line(words("symrail run -n 2 ./a")), words("symrail run -n 2 ./a"));
        assert_eq!(command_line(words("symrail run --np 2 -- ./a -np 3")), words("symrail run -n 2 -- ./a -np 3"));
        assert_eq!(command_line(words("symrail perf put-lat")), words("symrail perf put-lat"));
    }

    #[test]
    fn only_what_links_gets_the_library() {
        let places = Places { include: "/p/include".into(), library: "/p/lib".into() };
        assert_eq!(arguments(&words("-c a.c"), &places), words("-I/p/include -c a.c"));
        let linked = words("-I/p/include a.o -o a -L/p/lib -Wl,-rpath,/p/lib -lsymrail");
        assert_eq!(arguments(&words("a.o -o a"), &places), linked);
    }
}
