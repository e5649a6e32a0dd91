// Runs the kernels of convert.cu on the host, and compares each element with the table. Prints what differs.
//
// A block's threads are threads of the host, with a barrier for `__syncthreads`. Blocks run one after another.
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(threads)
#define __shared__
#define __syncthreads() block_barrier->arrive_and_wait()

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct Index {
    unsigned x, y;
};
static Index blockIdx, blockDim, gridDim;
static thread_local Index threadIdx;
static std::barrier<>* block_barrier;
// The shared memory of the block that runs.
uint4 memory[48 * 256 * sizeof(unsigned) / sizeof(uint4)];

#include "../../kernels/convert.cu"

// A multiple of eight threads, as on a GPU, so that the tiles of a block begin at multiples of 16 bytes.
static const unsigned BLOCKS = 3, BLOCKS_Y = 2, THREADS = 8;

template <class Element>
using Kernel = void (*)(const Byte*, Element*, const Element*, Bits32, Bits32, Bits32);

template <class Element>
static void launch(
    Kernel<Element> kernel, const Byte* in, Element* out, const Element* table, Bits32 channels, Bits32 pixels,
    Bits32 images) {
    gridDim = {BLOCKS, BLOCKS_Y};
    blockDim = {THREADS, 1};
    for (unsigned block = 0; block < BLOCKS * BLOCKS_Y; block++) {
        blockIdx = {block % BLOCKS, block / BLOCKS};
        // What the block before has left must not help this one.
        memset(memory, 0xee, sizeof memory);
        std::barrier<> barrier(THREADS);
        block_barrier = &barrier;
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < THREADS; i++)
            threads.emplace_back([=] {
                threadIdx.x = i;
                kernel(in, out, table, channels, pixels, images);
            });
        for (auto& thread : threads) thread.join();
    }
}

// Returns how many elements are wrong, and counts the elements behind the last one as wrong if they were written.
template <class Element>
static size_t check(
    Kernel<Element> kernel, bool is_interleaved, Bits32 channels, Bits32 pixels, Bits32 images, size_t offset) {
    const size_t elements = (size_t)channels * pixels * images, behind = 8;
    const Element unwritten = (Element)0xabababab;
    Byte* in = (Byte*)aligned_alloc(16, (elements + offset + 15) / 16 * 16) + offset;
    Element* out = (Element*)aligned_alloc(16, ((elements + behind) * sizeof(Element) + 15) / 16 * 16);
    std::vector<Element> table(channels * 256);
    for (size_t i = 0; i < elements; i++) in[i] = (Byte)rand();
    for (auto& value : table) value = (Element)rand();
    for (size_t i = 0; i < elements + behind; i++) out[i] = unwritten;
    launch(kernel, in, out, table.data(), channels, pixels, images);
    size_t wrong = 0;
    for (size_t i = 0; i < elements; i++) {
        const size_t image = i / pixels / channels, channel = i / pixels % channels, pixel = i % pixels;
        const size_t to = is_interleaved ? (image * pixels + pixel) * channels + channel : i;
        wrong += out[to] != table[256 * channel + in[i]];
    }
    for (size_t i = 0; i < behind; i++) wrong += out[elements + i] != unwritten;
    free(in - offset);
    free(out);
    if (wrong)
        printf(
            "%zu elements of %zu bytes are wrong: %u images, %u channels, %u pixels, interleaved %d, offset %zu\n",
            wrong, sizeof(Element), images, channels, pixels, is_interleaved, offset);
    return wrong;
}

int main() {
    size_t wrong = 0, runs = 0;
    for (Bits32 channels : {1u, 3u, 4u, 48u})
        for (Bits32 pixels : {1u, 8u, 12u, 16u, 17u, 33u * 31u, 64u * 64u})
            for (Bits32 images : {1u, 2u, 5u})
                for (size_t offset : {0u, 1u}) {
                    wrong += check<Bits16>(coprep_planes_16, false, channels, pixels, images, offset);
                    wrong += check<Bits32>(coprep_planes_32, false, channels, pixels, images, offset);
                    wrong += check<Bits16>(coprep_interleaved_16, true, channels, pixels, images, offset);
                    wrong += check<Bits32>(coprep_interleaved_32, true, channels, pixels, images, offset);
                    runs += 4;
                }
    printf("%zu runs, %zu elements are wrong\n", runs, wrong);
    return wrong != 0;
}
