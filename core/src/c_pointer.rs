//! Pointers among the arguments of C functions.

use std::ffi::{CStr, c_char, c_int};

/// A pointer that the caller of a C function passes: null, or the address of a `T`. The function takes it in place of a
/// `*mut T`; it is passed in the same way.
///
/// Whoever calls the function promises that the address is valid and aligned for reads and writes of a `T`, holds one if
/// the function reads it, and is used by no other code until the function returns. A pointer is not kept for longer.
#[repr(transparent)]
#[derive(Debug)]
pub struct CPointer<T>(*mut T);

impl<T> Clone for CPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CPointer<T> {}

impl<T> CPointer<T> {
    /// No address.
    pub const NULL: Self = CPointer(std::ptr::null_mut());

    /// Whether there is no address.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a value, unless the pointer is null. The value before it is not dropped.
    pub fn set(self, value: T) {
        if !self.is_null() {
            // SAFETY: the promise of callers.
            unsafe { self.0.write(value) }
        }
    }

    /// The value; `None` if the pointer is null.
    #[must_use]
    pub fn get(self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: the promise of callers.
        (!self.is_null()).then(|| unsafe { self.0.read() })
    }
}

/// The number of elements of a list that the caller of a C function passes; only such callers make one.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct CCount(c_int);

impl CCount {
    /// The number, which may be negative.
    #[must_use]
    pub fn get(self) -> c_int {
        self.0
    }
}

/// A list that the caller of a C function passes: null, or the address of as many `T` as the function's [`CCount`] says,
/// with the promise of a [`CPointer`] for each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct CList<T>(CPointer<T>);

impl<T: Copy> CList<T> {
    /// Whether there is no list.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The place of each element; null pointers if there is no list.
    pub fn places(self, CCount(count): CCount) -> impl Iterator<Item = CPointer<T>> + use<T> {
        let first = self.0;
        let place = move |i| if first.is_null() { first } else { CPointer(first.0.wrapping_add(i)) };
        (0..usize::try_from(count).unwrap_or(0)).map(place)
    }

    /// The elements; `None` if there are none.
    #[must_use]
    pub fn get(self, count: CCount) -> Option<Vec<T>> {
        self.places(count).map(CPointer::get).collect::<Option<Vec<T>>>().filter(|all| !all.is_empty())
    }
}

/// A text that the caller of a C function passes: null, or the address of characters that end with a zero, which stay
/// valid and unchanged until the function returns. The function takes it in place of a `*const c_char`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct CText(*const c_char);

impl CText {
    /// No text.
    pub const NULL: Self = CText(std::ptr::null());

    /// The text; `None` if the pointer is null.
    #[must_use]
    pub fn get(&self) -> Option<&CStr> {
        // SAFETY: the promise of callers.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn double(number: CPointer<i32>) -> bool {
        number.set(number.get().unwrap_or(0) * 2);
        number.is_null()
    }

    extern "C" fn sum(numbers: CList<i32>, count: CCount) -> i32 {
        numbers.places(count).skip(1).for_each(|place| place.set(7));
        numbers.get(count).map_or(-1, |all| all.iter().sum())
    }

    extern "C" fn length(text: CText) -> usize {
        text.get().map_or(usize::MAX, |text| text.to_bytes().len())
    }

    #[test]
    fn c_passes_them_as_pointers() {
        // SAFETY: they are passed as pointers are.
        let (double, sum, length) = unsafe {
            (
                std::mem::transmute::<extern "C" fn(CPointer<i32>) -> bool, extern "C" fn(*mut i32) -> bool>(double),
                std::mem::transmute::<extern "C" fn(CList<i32>, CCount) -> i32, extern "C" fn(*mut i32, c_int) -> i32>(
                    sum,
                ),
                std::mem::transmute::<extern "C" fn(CText) -> usize, extern "C" fn(*const c_char) -> usize>(length),
            )
        };
        let mut number = 21;
        assert!(!double(&raw mut number) && number == 42);
        assert!(double(std::ptr::null_mut()), "null is neither read nor written");
        let mut numbers = [1, 2, 3];
        assert_eq!((sum(numbers.as_mut_ptr(), 2), numbers), (8, [1, 7, 3]), "no more than the caller says");
        assert_eq!([-2, 0].map(|count| sum(numbers.as_mut_ptr(), count)), [-1; 2]);
        assert_eq!(sum(std::ptr::null_mut(), 2), -1);
        assert_eq!((length(c"abc".as_ptr()), length(std::ptr::null())), (3, usize::MAX));
    }
}
