// Encodes and decodes rows of bfloat16 by cu/logfmt.cuh, for the test in src/logfmt.rs: reads rows from standard input, and
// writes for each the bytes of logfmt.rs and the decoded row. Argument: elements of a row.
#include "symrail_device.cuh"
#include "../../cu/logfmt.cuh"

int main(int, char** arguments) {
    symrail_u32 elements = atoi(arguments[1]), pieces = elements / 8, bytes = 2 * elements;
    std::vector<symrail_wide> row(pieces), stored(pieces), decoded(pieces);
    job.me = 0;
    while (fread(row.data(), 1, bytes, stdin) == bytes) {
        symrail_u32 encoded[MOST_GROUP_WORDS] = {};
        launch(1, 64, [&] {
            const float* logs = share_logs();
            // Whole warps, as a combine does.
            for (symrail_u32 base = threadIdx.x / 32 * 32; base < pieces; base += blockDim.x) {
                symrail_u32 piece = base + threadIdx.x % 32, two[4] = {};
                if (piece < pieces) memcpy(two, &row[piece], 16);
                store_group(logs, (char*)stored.data(), piece, pieces, two, encoded);
            }
            __syncthreads();
            for (symrail_u32 piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
                bool is_encoded = encoded[piece / GROUP_PIECES / 32] >> piece / GROUP_PIECES % 32 & 1;
                symrail_wide found = load_piece((const char*)stored.data(), piece, is_encoded);
                float values[8];
                symrail_u32 two[4];
                memcpy(two, &found, 16);
                if (is_encoded) {
                    decode_piece(logs, found, piece, values);
                    for (int i = 0; i < 4; i++) two[i] = __float_as_uint(values[2 * i]) >> 16 | (__float_as_uint(values[2 * i + 1]) & 0xffff0000u);
                }
                memcpy(&decoded[piece], two, 16);
            }
        });
        for (symrail_u32 first = 0; first < elements; first += GROUP_ELEMENTS) {
            symrail_u32 many = std::min(elements - first, GROUP_ELEMENTS), group = first / GROUP_ELEMENTS;
            const char* at = (const char*)stored.data() + 2 * first;
            if (encoded[group / 32] >> group % 32 & 1) {
                fwrite(at, 1, 4 + 10 * many / 8, stdout);
                continue;
            }
            // Those limits do not travel here: which groups are encoded is noted apart.
            symrail_u32 largest = 0, smallest = 0x7fff;
            const unsigned short* its = (const unsigned short*)row.data() + first;
            for (symrail_u32 i = 0; i < many; i++)
                largest = std::max<symrail_u32>(largest, its[i] & 0x7fff), smallest = std::min<symrail_u32>(smallest, its[i] & 0x7fff);
            if (largest > INFINITE) largest = smallest = NO_NUMBER;
            symrail_u32 limits = largest | smallest << 16;
            fwrite(&limits, 1, 4, stdout), fwrite(at, 1, 2 * many, stdout);
        }
        fwrite(decoded.data(), 1, bytes, stdout);
    }
    return 0;
}
