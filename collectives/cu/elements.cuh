/* Elements in memory, one at a time and at any address. */
#ifndef SYMRAIL_ELEMENTS_CUH
#define SYMRAIL_ELEMENTS_CUH

#include "symrail_channels.cuh"
#include "symrail/number.cuh"

template <class N>
SYMRAIL_DEVICE void symrail_load_element(symrail_u64 at, typename N::stored& code) {
    typedef typename N::stored T;
    if (at % sizeof(T) == 0) {
        code = symrail_peer_source::value((const T*)at);
        return;
    }
    for (symrail_u32 i = 0; i < sizeof(T); i++) ((char*)&code)[i] = symrail_peer_source::value((const char*)at + i);
}
template <class N>
SYMRAIL_DEVICE void symrail_store_element(symrail_u64 at, typename N::stored code) {
    typedef typename N::stored T;
    if (at % sizeof(T) == 0) {
        *(T*)at = code;
        return;
    }
    for (symrail_u32 i = 0; i < sizeof(T); i++) ((char*)at)[i] = ((const char*)&code)[i];
}
template <class N>
SYMRAIL_DEVICE void symrail_divide_element(symrail_u64 at, symrail_u32 by) {
    typename N::stored code;
    symrail_load_element<N>(at, code);
    symrail_store_element<N>(at, N::store(symrail_quotient_of(N::load(code), by)));
}

template <class N>
SYMRAIL_DEVICE void symrail_multiply_element(symrail_u64 at, typename N::stored by) {
    typename N::stored code;
    symrail_load_element<N>(at, code);
    symrail_store_element<N>(at, N::store(N::load(code) * N::load(by)));
}

#endif
