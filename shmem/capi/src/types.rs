//! The types of OpenSHMEM's typed routines: the one table from which the exported functions and the C header are made.
//!
//! A list of types is a macro that calls another macro with rows: the name in routine names, the type in C, the type in
//! Rust.

/// Calls a macro with the rows of several groups of types, one group after the other.
macro_rules! rows {
    ($call:ident [] $($rows:tt)*) => { $call! { $($rows)* } };
    ($call:ident [real $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "float", "float", f32; "double", "double", f64; }
    };
    ($call:ident [long_real $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "longdouble", "long double", LongDouble; }
    };
    ($call:ident [complex $($rest:ident)*] $($rows:tt)*) => {
        rows! {
            $call [$($rest)*] $($rows)*
            "complexf", "float _Complex", Complex<f32>; "complexd", "double _Complex", Complex<f64>;
        }
    };
    ($call:ident [chars $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "char", "char", c_char; "schar", "signed char", c_schar; }
    };
    ($call:ident [short $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "short", "short", c_short; }
    };
    ($call:ident [ints $($rest:ident)*] $($rows:tt)*) => {
        rows! {
            $call [$($rest)*] $($rows)*
            "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong;
        }
    };
    ($call:ident [uchar $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "uchar", "unsigned char", c_uchar; }
    };
    ($call:ident [ushort $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "ushort", "unsigned short", c_ushort; }
    };
    ($call:ident [uints $($rest:ident)*] $($rows:tt)*) => {
        rows! {
            $call [$($rest)*] $($rows)*
            "uint", "unsigned int", c_uint; "ulong", "unsigned long", c_ulong;
            "ulonglong", "unsigned long long", c_ulonglong;
        }
    };
    ($call:ident [int8_16 $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "int8", "int8_t", i8; "int16", "int16_t", i16; }
    };
    ($call:ident [int32_64 $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "int32", "int32_t", i32; "int64", "int64_t", i64; }
    };
    ($call:ident [uint8_16 $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "uint8", "uint8_t", u8; "uint16", "uint16_t", u16; }
    };
    ($call:ident [uint32_64 $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; }
    };
    ($call:ident [size $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "size", "size_t", usize; }
    };
    ($call:ident [ptrdiff $($rest:ident)*] $($rows:tt)*) => {
        rows! { $call [$($rest)*] $($rows)* "ptrdiff", "ptrdiff_t", isize; }
    };
}

/// Makes lists of groups.
macro_rules! lists {
    ($d:tt $($(#[$doc:meta])* $name:ident: $($group:ident)*;)*) => {$(
        $(#[$doc])*
        macro_rules! $name {
            ($d call:ident) => { rows! { $d call [$($group)*] } };
        }
    )*};
}

lists! { $
    /// Types of puts, gets, collectives.
    rma_types: real long_real chars short ints uchar ushort uints int8_16 int32_64 uint8_16 uint32_64 size ptrdiff;
    /// Types of puts and gets by value. Rust cannot express how C passes a long double, so the header implements those.
    value_types: real chars short ints uchar ushort uints int8_16 int32_64 uint8_16 uint32_64 size ptrdiff;
    /// Types of AMOs that add and compare.
    amo_types: ints uints int32_64 uint32_64 size ptrdiff;
    /// Types of AMOs that only move a value.
    extended_amo_types: real ints uints int32_64 uint32_64 size ptrdiff;
    /// Types of AMOs on bits.
    bitwise_amo_types: uints int32_64 uint32_64;
    /// Types of words that programs can wait for.
    wait_types: short ushort ints uints int32_64 uint32_64 size ptrdiff;
    /// Types of the waits without a comparison, from before 1.5.
    old_wait_types: short ints;
    /// Types of reductions on bits.
    bitwise_reduce_types: uchar ushort uints int8_16 int32_64 uint8_16 uint32_64 size;
    /// Types of minimum and maximum.
    ordered_reduce_types:
        real long_real chars short ints ptrdiff uchar ushort uints int8_16 int32_64 uint8_16 uint32_64 size;
    /// Types of sums and products.
    arithmetic_reduce_types:
        real long_real complex chars short ints ptrdiff uchar ushort uints int8_16 int32_64 uint8_16 uint32_64 size;
    /// Types of active sets' reductions on bits.
    old_bitwise_reduce_types: short ints;
    /// Types of active sets' minimum and maximum.
    old_ordered_reduce_types: short ints real long_real;
    /// Types of active sets' sums and products.
    old_arithmetic_reduce_types: short ints real long_real complex;
}

/// Sizes of untyped routines: name (some have a `mem` routine as well), bytes, and whether collectives have them.
macro_rules! sizes {
    ($call:ident) => {
        $call! { "8", 1; "16", 2; "32", 4; "64", 8; "128", 16; }
    };
}
