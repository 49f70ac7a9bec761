/* Packets: data with flags inside, so that its reader needs no signal.
 *
 * A word of 64 bits holds four bytes of data below and a flag above. It is written and read at once, so a word with the
 * flag has the data. Two consecutive words are a packet of 16 bytes: one store of both carries eight bytes of data.
 * Writer and reader agree on a flag that the words did not have before; fresh memory has 0. */
#ifndef SYMRAIL_PACKET_CUH
#define SYMRAIL_PACKET_CUH

#include "memory.cuh"

/* Bytes of data in a word, and in a packet of 16 bytes. */
#define SYMRAIL_PACKET8_DATA 4u
#define SYMRAIL_PACKET16_DATA 8u

SYMRAIL_DEVICE symrail_u64 symrail_packet_word(symrail_u32 data, symrail_u32 flag) {
    return (symrail_u64)flag << 32 | data;
}
SYMRAIL_DEVICE bool symrail_packet_has(symrail_u64 word, symrail_u32 flag) { return (symrail_u32)(word >> 32) == flag; }

SYMRAIL_DEVICE void symrail_packet8_write(symrail_u64 at, symrail_u32 data, symrail_u32 flag) {
    symrail_st_sys(at, symrail_packet_word(data, flag));
}
/* Whether the packet has the flag. If so, `data` is its data. */
SYMRAIL_DEVICE bool symrail_packet8_read(symrail_u64 at, symrail_u32 flag, symrail_u32& data) {
    symrail_u64 word = symrail_ld_sys(at);
    data = (symrail_u32)word;
    return symrail_packet_has(word, flag);
}
SYMRAIL_DEVICE void symrail_packet16_write(symrail_u64 at, symrail_u64 data, symrail_u32 flag) {
    symrail_st_pair(at, symrail_packet_word((symrail_u32)data, flag),
                    symrail_packet_word((symrail_u32)(data >> 32), flag));
}
SYMRAIL_DEVICE bool symrail_packet16_read(symrail_u64 at, symrail_u32 flag, symrail_u64& data) {
    symrail_u64 low, high;
    symrail_ld_pair(at, low, high);
    data = high << 32 | (symrail_u32)low;
    return symrail_packet_has(low, flag) && symrail_packet_has(high, flag);
}

/* Loads up to eight bytes from any address; missing bytes are 0. */
SYMRAIL_DEVICE symrail_u64 symrail_load_some(const char* from, symrail_u64 bytes) {
    if (bytes >= 8 && ((symrail_u64)from & 7) == 0) return *(const symrail_u64*)from;
    symrail_u64 data = 0;
    if (bytes >= 8 && ((symrail_u64)from & 3) == 0) {
        const symrail_u32* words = (const symrail_u32*)from;
        return (symrail_u64)words[1] << 32 | words[0];
    }
    for (symrail_u32 i = 0; i < 8 && i < bytes; i++) data |= (symrail_u64)(unsigned char)from[i] << (8 * i);
    return data;
}
/* Stores the first up to eight bytes of a word at any address. */
SYMRAIL_DEVICE void symrail_store_some(char* to, symrail_u64 data, symrail_u64 bytes) {
    if (bytes >= 8 && ((symrail_u64)to & 7) == 0) {
        *(symrail_u64*)to = data;
    } else if (bytes >= 8 && ((symrail_u64)to & 3) == 0) {
        ((symrail_u32*)to)[0] = (symrail_u32)data;
        ((symrail_u32*)to)[1] = (symrail_u32)(data >> 32);
    } else {
        for (symrail_u32 i = 0; i < 8 && i < bytes; i++) to[i] = (char)(data >> (8 * i));
    }
}

#endif
