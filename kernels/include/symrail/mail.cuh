/* Small deliveries to this device's memory, which the proxy can only access through the driver. A waiting thread polls
 * host memory for them, and writes them. heap/src/mailbox.rs explains the protocol; this is the reader.
 *
 * The written words are in this device's memory. Any reader of them, even over NVLink and PCIe, observes the order of
 * this device's fences. System-wide fences take twice as long. */
#ifndef SYMRAIL_MAIL_CUH
#define SYMRAIL_MAIL_CUH

#include "memory.cuh"

#define SYMRAIL_MAIL_ENTRIES_AT 128ull
#define SYMRAIL_MAIL_ENTRIES 16ull
#define SYMRAIL_MAIL_HALF_BYTES 128ull
#define SYMRAIL_MAIL_EPOCH_SHIFT 38
#define SYMRAIL_MAIL_SIZE_SHIFT 62
#define SYMRAIL_MAIL_PRESENT (1ull << 63)
#define SYMRAIL_MAIL_POSITION ((1ull << 62) - 1)
#define SYMRAIL_MAIL_NUMBER ((1ull << SYMRAIL_MAIL_EPOCH_SHIFT) - 1)

/* The readers' word in device memory is their position, and this bit while a thread is the reader. */
#define SYMRAIL_MAIL_TAKEN (1ull << 63)

/* Two entries, as they were loaded. */
struct symrail_mail_entries {
    symrail_u64 w[8];
};

/* One thread's turn as the reader. */
struct symrail_mail {
    bool reading;
    /* Entries were taken, and the proxy does not know yet. */
    bool untold;
    symrail_u64 position;
    SYMRAIL_WAITER_FN symrail_mail() : reading(false), untold(false), position(0) {}

    SYMRAIL_WAITER_FN symrail_u64 next(symrail_u64 after) const {
        return (position & ~SYMRAIL_MAIL_NUMBER) | ((position + after) & SYMRAIL_MAIL_NUMBER);
    }

    /* Makes this thread the reader, if there is none. */
    SYMRAIL_WAITER_FN void come() {
        if (symrail_ld_gpu(symrail_state.mail_word) & SYMRAIL_MAIL_TAKEN) return;
        symrail_u64 last = atomicOr((symrail_u64*)symrail_state.mail_word, SYMRAIL_MAIL_TAKEN);
        if (last & SYMRAIL_MAIL_TAKEN) return;
        position = (last + (1ull << SYMRAIL_MAIL_EPOCH_SHIFT)) & SYMRAIL_MAIL_POSITION;
        symrail_st_sys(symrail_state.mailbox, SYMRAIL_MAIL_PRESENT | position);
        reading = true;
    }

    /* Loads the next two entries, whether they have arrived or not. */
    SYMRAIL_WAITER_FN void look(symrail_mail_entries& entries) {
        if (untold) {
            __threadfence();
            symrail_st_sys(symrail_state.mailbox, SYMRAIL_MAIL_PRESENT | position);
            untold = false;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            symrail_u64 half = 2 * ((next(1 + i / 2) & SYMRAIL_MAIL_NUMBER) % SYMRAIL_MAIL_ENTRIES) + i % 2;
            symrail_u64 at = symrail_state.mailbox + SYMRAIL_MAIL_ENTRIES_AT + half * SYMRAIL_MAIL_HALF_BYTES;
            symrail_ld_pair(at, entries.w[2 * i], entries.w[2 * i + 1]);
        }
    }

    /* Writes arrived entries, each ordered behind the one before. `seen` gets the new value of `word`, if that was
     * written. */
    SYMRAIL_WAITER_FN void take(const symrail_mail_entries& entries, symrail_u64 word, symrail_u64& seen) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const symrail_u64* w = entries.w + 4 * i;
            symrail_u64 expected = next(1);
            if ((w[1] & SYMRAIL_MAIL_POSITION) != expected || (w[3] & SYMRAIL_MAIL_POSITION) != expected) break;
            if (i != 0) __threadfence();
            write(w[0], w[2], (symrail_u32)(w[1] >> SYMRAIL_MAIL_SIZE_SHIFT));
            if (w[0] == word) seen = w[2];
            position = expected;
            untold = true;
        }
    }

    /* One blocking round: loads entries and writes those that have arrived. */
    SYMRAIL_WAITER_FN void once() {
        symrail_mail_entries entries;
        if (!reading) come();
        if (!reading) return;
        look(entries);
        symrail_u64 seen;
        take(entries, 0, seen);
    }

    SYMRAIL_WAITER_FN static void write(symrail_u64 at, symrail_u64 value, symrail_u32 log2_bytes) {
        switch (log2_bytes) {
            case 0: *(volatile unsigned char*)at = (unsigned char)value; break;
            case 1: *(volatile unsigned short*)at = (unsigned short)value; break;
            case 2: *(volatile symrail_u32*)at = (symrail_u32)value; break;
            default: *(volatile symrail_u64*)at = value; break;
        }
    }

    /* Ends this thread's turn as the reader: later entries are for the next reader, or for the driver. Delivered words
     * are visible behind this. The next reader may announce itself before this becomes visible, because the CPU goes by
     * the position. */
    SYMRAIL_WAITER_FN void leave() {
        if (!reading) return;
        if (untold) __threadfence();
        symrail_st_sys(symrail_state.mailbox, position);
        symrail_st_gpu(symrail_state.mail_word, position);
        reading = false;
    }
};

#endif
