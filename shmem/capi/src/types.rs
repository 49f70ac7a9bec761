//! The types of OpenSHMEM's typed routines: the one table from which the exported functions and the C header are made.
//!
//! Each macro calls another one with rows of: the name in routine names, the type in C, the type in Rust.

/// Types of puts, gets, collectives.
macro_rules! rma_types {
    ($call:ident) => {
        $call! {
            "float", "float", f32; "double", "double", f64; "longdouble", "long double", LongDouble;
            "char", "char", c_char; "schar", "signed char", c_schar; "short", "short", c_short; "int", "int", c_int;
            "long", "long", c_long; "longlong", "long long", c_longlong; "uchar", "unsigned char", c_uchar;
            "ushort", "unsigned short", c_ushort; "uint", "unsigned int", c_uint; "ulong", "unsigned long", c_ulong;
            "ulonglong", "unsigned long long", c_ulonglong; "int8", "int8_t", i8; "int16", "int16_t", i16;
            "int32", "int32_t", i32; "int64", "int64_t", i64; "uint8", "uint8_t", u8; "uint16", "uint16_t", u16;
            "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
            "ptrdiff", "ptrdiff_t", isize;
        }
    };
}

/// Types of puts and gets by value. A long double is passed in a way that Rust has no word for: the header does it.
macro_rules! value_types {
    ($call:ident) => {
        $call! {
            "float", "float", f32; "double", "double", f64;
            "char", "char", c_char; "schar", "signed char", c_schar; "short", "short", c_short; "int", "int", c_int;
            "long", "long", c_long; "longlong", "long long", c_longlong; "uchar", "unsigned char", c_uchar;
            "ushort", "unsigned short", c_ushort; "uint", "unsigned int", c_uint; "ulong", "unsigned long", c_ulong;
            "ulonglong", "unsigned long long", c_ulonglong; "int8", "int8_t", i8; "int16", "int16_t", i16;
            "int32", "int32_t", i32; "int64", "int64_t", i64; "uint8", "uint8_t", u8; "uint16", "uint16_t", u16;
            "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
            "ptrdiff", "ptrdiff_t", isize;
        }
    };
}

/// Types of AMOs that add and compare.
macro_rules! amo_types {
    ($call:ident) => {
        $call! {
            "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong; "uint", "unsigned int", c_uint;
            "ulong", "unsigned long", c_ulong; "ulonglong", "unsigned long long", c_ulonglong; "int32", "int32_t", i32;
            "int64", "int64_t", i64; "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
            "ptrdiff", "ptrdiff_t", isize;
        }
    };
}

/// Types of AMOs that only move a value.
macro_rules! extended_amo_types {
    ($call:ident) => {
        $call! {
            "float", "float", f32; "double", "double", f64;
            "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong; "uint", "unsigned int", c_uint;
            "ulong", "unsigned long", c_ulong; "ulonglong", "unsigned long long", c_ulonglong; "int32", "int32_t", i32;
            "int64", "int64_t", i64; "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
            "ptrdiff", "ptrdiff_t", isize;
        }
    };
}

/// Types of AMOs on bits.
macro_rules! bitwise_amo_types {
    ($call:ident) => {
        $call! {
            "uint", "unsigned int", c_uint; "ulong", "unsigned long", c_ulong;
            "ulonglong", "unsigned long long", c_ulonglong; "int32", "int32_t", i32; "int64", "int64_t", i64;
            "uint32", "uint32_t", u32; "uint64", "uint64_t", u64;
        }
    };
}

/// Types of words that can be waited for.
macro_rules! wait_types {
    ($call:ident) => {
        $call! {
            "short", "short", c_short; "ushort", "unsigned short", c_ushort;
            "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong; "uint", "unsigned int", c_uint;
            "ulong", "unsigned long", c_ulong; "ulonglong", "unsigned long long", c_ulonglong; "int32", "int32_t", i32;
            "int64", "int64_t", i64; "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
            "ptrdiff", "ptrdiff_t", isize;
        }
    };
}

/// Types of the waits of before 1.5 without a comparison.
macro_rules! old_wait_types {
    ($call:ident) => {
        $call! { "short", "short", c_short; "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong; }
    };
}

/// Types of reductions on bits.
macro_rules! bitwise_reduce_types {
    ($call:ident) => {
        $call! {
            "uchar", "unsigned char", c_uchar; "ushort", "unsigned short", c_ushort; "uint", "unsigned int", c_uint;
            "ulong", "unsigned long", c_ulong; "ulonglong", "unsigned long long", c_ulonglong; "int8", "int8_t", i8;
            "int16", "int16_t", i16; "int32", "int32_t", i32; "int64", "int64_t", i64; "uint8", "uint8_t", u8;
            "uint16", "uint16_t", u16; "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
        }
    };
}

/// Types of least and greatest.
macro_rules! ordered_reduce_types {
    ($call:ident) => {
        $call! {
            "float", "float", f32; "double", "double", f64; "longdouble", "long double", LongDouble;
            "char", "char", c_char; "schar", "signed char", c_schar; "short", "short", c_short; "int", "int", c_int;
            "long", "long", c_long; "longlong", "long long", c_longlong; "ptrdiff", "ptrdiff_t", isize;
            "uchar", "unsigned char", c_uchar; "ushort", "unsigned short", c_ushort; "uint", "unsigned int", c_uint;
            "ulong", "unsigned long", c_ulong; "ulonglong", "unsigned long long", c_ulonglong; "int8", "int8_t", i8;
            "int16", "int16_t", i16; "int32", "int32_t", i32; "int64", "int64_t", i64; "uint8", "uint8_t", u8;
            "uint16", "uint16_t", u16; "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
        }
    };
}

/// Types of sums and products.
macro_rules! arithmetic_reduce_types {
    ($call:ident) => {
        $call! {
            "float", "float", f32; "double", "double", f64; "longdouble", "long double", LongDouble;
            "complexf", "float _Complex", Complex<f32>; "complexd", "double _Complex", Complex<f64>;
            "char", "char", c_char; "schar", "signed char", c_schar; "short", "short", c_short; "int", "int", c_int;
            "long", "long", c_long; "longlong", "long long", c_longlong; "ptrdiff", "ptrdiff_t", isize;
            "uchar", "unsigned char", c_uchar; "ushort", "unsigned short", c_ushort; "uint", "unsigned int", c_uint;
            "ulong", "unsigned long", c_ulong; "ulonglong", "unsigned long long", c_ulonglong; "int8", "int8_t", i8;
            "int16", "int16_t", i16; "int32", "int32_t", i32; "int64", "int64_t", i64; "uint8", "uint8_t", u8;
            "uint16", "uint16_t", u16; "uint32", "uint32_t", u32; "uint64", "uint64_t", u64; "size", "size_t", usize;
        }
    };
}

/// Types of active sets' reductions on bits.
macro_rules! old_bitwise_reduce_types {
    ($call:ident) => {
        $call! { "short", "short", c_short; "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong; }
    };
}

/// Types of active sets' least and greatest.
macro_rules! old_ordered_reduce_types {
    ($call:ident) => {
        $call! {
            "short", "short", c_short; "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong;
            "float", "float", f32; "double", "double", f64; "longdouble", "long double", LongDouble;
        }
    };
}

/// Types of active sets' sums and products.
macro_rules! old_arithmetic_reduce_types {
    ($call:ident) => {
        $call! {
            "short", "short", c_short; "int", "int", c_int; "long", "long", c_long; "longlong", "long long", c_longlong;
            "float", "float", f32; "double", "double", f64; "longdouble", "long double", LongDouble;
            "complexf", "float _Complex", Complex<f32>; "complexd", "double _Complex", Complex<f64>;
        }
    };
}

/// Sizes of untyped routines: name (of which some have a `mem` one too), bytes, and whether collectives have it.
macro_rules! sizes {
    ($call:ident) => {
        $call! { "8", 1; "16", 2; "32", 4; "64", 8; "128", 16; }
    };
}
