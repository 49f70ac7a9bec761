//! Layouts that host and kernels share: structs and constants of Rust, from which headers for CUDA C++ are made.
//!
//! [`layouts!`](crate::layouts) defines them. The header has the same names, and a `static_assert` for each size and
//! offset, so that the compiler of the kernels confirms the layout. A test of the defining crate compares the header
//! with the committed file.

use std::fmt::Write as _;
use std::path::Path;

/// A type that both sides know, without padding.
pub trait Member: Copy {
    /// The declaration in C++ of a member of this type.
    fn declare(name: &str) -> String;

    /// Stores the value in its memory, of `size_of::<Self>()` bytes.
    fn store(self, to: &mut [u8]);
}

/// A struct that both sides know.
pub trait Layout: Member {
    /// Its definition in C++.
    fn definition() -> String;
}

/// The bytes of structs, one after the other.
#[must_use]
pub fn bytes<T: Member>(all: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(all)];
    all.iter().zip(bytes.chunks_exact_mut(size_of::<T>())).for_each(|(each, to)| each.store(to));
    bytes
}

/// The 64-bit words of structs, one after the other. Their sizes are multiples of 8 bytes.
#[must_use]
pub fn words<T: Member>(all: &[T]) -> Vec<u64> {
    bytes(all).as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

macro_rules! number {
    ($($ty:ty = $c:literal),*) => {$(
        impl Member for $ty {
            fn declare(name: &str) -> String {
                format!(concat!($c, " {}"), name)
            }

            fn store(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
number!(u64 = "symrail_u64", u32 = "symrail_u32");

impl<T: Member, const N: usize> Member for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }

    fn store(self, to: &mut [u8]) {
        self.into_iter().zip(to.chunks_exact_mut(size_of::<T>())).for_each(|(each, to)| each.store(to));
    }
}

/// The type of a constant.
pub trait Constant {
    /// The literal in C++.
    fn literal(self) -> String;
}

macro_rules! constant {
    ($($ty:ty = $suffix:literal),*) => {$(
        impl Constant for $ty {
            fn literal(self) -> String {
                format!(concat!("{}", $suffix), self)
            }
        }
    )*};
}
constant!(u64 = "ull", u32 = "", usize = "");

/// A member of a struct, for its definition.
#[derive(Debug)]
pub struct Defined<'a> {
    /// The lines of its comment.
    pub comment: &'a [&'a str],
    /// Its name.
    pub name: &'a str,
    /// Its declaration.
    pub declaration: String,
    /// Its offset, in bytes.
    pub offset: usize,
}

/// The definition of a struct of `size` bytes, with the assertions of its layout.
#[must_use]
pub fn definition(comment: &[&str], name: &str, size: usize, members: &[Defined<'_>]) -> String {
    let mut text = commented("", comment, &format!("struct {name} {{"));
    let mut asserts = format!("static_assert(sizeof({name}) == {size}, \"{name}\");\n");
    for Defined { comment, name: member, declaration, offset } in members {
        let member = member.trim_start_matches("r#");
        text.push_str(&commented("    ", comment, &format!("{declaration};")));
        // Writing to a string cannot fail.
        let _ =
            writeln!(asserts, "static_assert(SYMRAIL_OFFSETOF({name}, {member}) == {offset}, \"{name}.{member}\");");
    }
    text + "};\n" + &asserts
}

/// A line of C++ behind its comment.
fn commented(indent: &str, comment: &[&str], line: &str) -> String {
    let mut text = String::new();
    for (i, said) in comment.iter().enumerate() {
        let (from, to) = (if i == 0 { "/*" } else { " *" }, if i + 1 == comment.len() { " */" } else { "" });
        let _ = writeln!(text, "{indent}{from}{said}{to}");
    }
    text + indent + line + "\n"
}

/// A header under construction.
#[derive(Debug)]
pub struct Header(String);

impl Header {
    /// Begins a header with its include guard; `source` is the file that defines it.
    #[must_use]
    pub fn new(guard: &str, source: &str) -> Header {
        Header(format!(
            "/* Generated from {source}, which explains every constant. Do not edit. */\n\
             #ifndef {guard}\n#define {guard}\n"
        ))
    }

    /// Adds constants under a title, each by its name and its literal.
    #[must_use]
    pub fn section(mut self, title: &str, constants: &[(String, String)]) -> Header {
        let _ = write!(self.0, "\n/* {title} */\n");
        for (name, literal) in constants {
            let _ = writeln!(self.0, "#define {name} {literal}");
        }
        self
    }

    /// Adds a constant with the lines of its comment.
    #[must_use]
    pub fn constant(mut self, comment: &[&str], name: &str, value: impl Constant) -> Header {
        self.0.push_str(&commented("", comment, &format!("#define {name} {}", value.literal())));
        self
    }

    /// Adds the macro that the assertions of structs use.
    #[must_use]
    pub fn offsets(mut self) -> Header {
        self.0.push_str(
            "/* NVRTC has neither offsetof nor the built-in function of other compilers. */\n\
             #ifndef SYMRAIL_OFFSETOF\n\
             #ifdef __CUDACC_RTC__\n\
             #define SYMRAIL_OFFSETOF(TYPE, MEMBER) __INTADDR__(&((TYPE*)0)->MEMBER)\n\
             #else\n\
             #define SYMRAIL_OFFSETOF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)\n\
             #endif\n\
             #endif\n\n",
        );
        self
    }

    /// Adds a struct.
    #[must_use]
    pub fn layout<T: Layout>(mut self) -> Header {
        let _ = write!(self.0, "\n{}", T::definition());
        self
    }

    /// The whole text.
    #[must_use]
    pub fn finish(self) -> String {
        self.0 + "\n#endif\n"
    }
}

/// For tests: compares a header with the committed file, or writes the file if `SYMRAIL_TEST_WRITE_DOCS` is set.
///
/// # Panics
/// The file differs.
pub fn check(folder: &str, file: &str, header: &str) {
    let path = Path::new(folder).join(file);
    if std::env::var_os("SYMRAIL_TEST_WRITE_DOCS").is_some() {
        let _ = std::fs::write(&path, header);
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == header,
        "{} is not what its structs say; run this test with SYMRAIL_TEST_WRITE_DOCS=1 to write it anew",
        path.display()
    );
}

/// Defines constants and `#[repr(C)]` structs, a function `header` that renders them for CUDA C++, and the test that
/// compares it with the committed file. Each item names itself in C++; a member may name another type of its size.
///
/// ```
/// symrail_core::layouts! {
///     header "cu/layout.cuh" of "example/src/layout.rs" with "EXAMPLE_LAYOUT_CUH";
///     constants {
///         /// The number of words.
///         pub WORDS "EXAMPLE_WORDS": usize = 2;
///     }
///     structs {
///         /// What kernels read.
///         pub Plan "example_plan" {
///             /// The words.
///             at: u64 as "const symrail_u64*",
///             counts: [u32; WORDS],
///         }
///     }
/// }
/// let plan = Plan { at: 1, counts: [2, 3] };
/// assert_eq!(symrail_core::layout::words(&[plan]), [1, 3 << 32 | 2]);
/// assert!(header().contains("    const symrail_u64* at;\n    symrail_u32 counts[2];\n"));
/// ```
#[macro_export]
macro_rules! layouts {
    (
        header $file:literal of $source:literal with $guard:literal;
        constants {$(
            $(#[doc = $about_constant:literal])*
            $constant_vis:vis $constant:ident $c_constant:literal: $constant_ty:ty = $value:expr;
        )*}
        structs {$(
            $(#[doc = $about:literal])*
            $vis:vis $name:ident $c_name:literal {$(
                $(#[doc = $doc:literal])*
                $field:ident: $ty:ty $(as $c_ty:literal)?
            ),* $(,)?}
        )*}
    ) => {
        $(
            $(#[doc = $about_constant])*
            $constant_vis const $constant: $constant_ty = $value;
        )*
        $(
            $(#[doc = $about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            #[repr(C)]
            $vis struct $name {$(
                $(#[doc = $doc])*
                $vis $field: $ty,
            )*}

            impl $crate::layout::Member for $name {
                fn declare(name: &str) -> String {
                    format!(concat!($c_name, " {}"), name)
                }

                fn store(self, to: &mut [u8]) {
                    const {
                        assert!(0 $(+ size_of::<$ty>())* == size_of::<$name>(), "padding");
                    }
                    $({
                        let at = ::std::mem::offset_of!($name, $field);
                        $crate::layout::Member::store(self.$field, &mut to[at..][..size_of::<$ty>()]);
                    })*
                }
            }

            impl $crate::layout::Layout for $name {
                fn definition() -> String {
                    let members = [$($crate::layout::Defined {
                        comment: &[$($doc),*],
                        name: stringify!($field),
                        declaration: [$(format!(concat!($c_ty, " {}"), stringify!($field)),)?]
                            .into_iter()
                            .next()
                            .unwrap_or_else(|| {
                                let name = stringify!($field).trim_start_matches("r#");
                                <$ty as $crate::layout::Member>::declare(name)
                            }),
                        offset: ::std::mem::offset_of!($name, $field),
                    }),*];
                    $crate::layout::definition(&[$($about),*], $c_name, size_of::<$name>(), &members)
                }
            }
        )*

        /// Renders these constants and structs as a header for CUDA C++.
        #[must_use]
        #[allow(dead_code)]
        pub fn header() -> String {
            $crate::layout::Header::new($guard, $source)
                .offsets()
                $(.constant(&[$($about_constant),*], $c_constant, $constant))*
                $(.layout::<$name>())*
                .finish()
        }

        #[cfg(test)]
        #[test]
        fn header_is_up_to_date() {
            $crate::layout::check(env!("CARGO_MANIFEST_DIR"), $file, &header());
        }
    };
}

/// The index of a member among the 64-bit words of a struct.
#[macro_export]
macro_rules! word_of {
    ($name:ty, $($field:tt)+) => { ::std::mem::offset_of!($name, $($field)+) / size_of::<u64>() };
}
