// Converts images: each byte becomes the element that a table has for it and its channel.
//
// The table is computed on the host, by the function that the CPU path uses, so that the GPU computes with no number
// that has a fraction, and both give the same bits in any type of element. 16 and 32 bits are two types here: the
// kernels only move elements.
//
//   in      images x channels x pixels bytes: planes, as a slot of the staging area has them
//   table   channels x 256 elements
//   out     images x channels x pixels elements (planes), or images x pixels x channels elements (interleaved)
//
// Shared memory: channels x 256 elements. `make ptx` compiles this file; see build_ptx.py.

typedef unsigned char Byte;
typedef unsigned short Bits16;
typedef unsigned int Bits32;
typedef unsigned long long Count;

struct Threads {
    Count first, all;
};

// The threads of all blocks share the work: each begins at its own number and goes on in steps of their number.
__device__ __forceinline__ Threads threads() {
    return {blockIdx.x * (Count)blockDim.x + threadIdx.x, gridDim.x * (Count)blockDim.x};
}

// Copies the table to shared memory, which answers look-ups of 32 threads at a time.
template <class Element>
__device__ __forceinline__ const Element* shared_table(const Element* table, Bits32 channels) {
    extern __shared__ Bits32 memory[];
    Element* copy = (Element*)memory;
    for (Bits32 i = threadIdx.x; i < channels * 256; i += blockDim.x) copy[i] = table[i];
    __syncthreads();
    return copy;
}

template <class Element>
struct alignas(16) Sixteen {
    Element elements[16];
};

// Sixteen pixels of one plane at a time, by loads and stores of 16 bytes.
template <class Element>
__device__ __forceinline__ void planes_by_sixteen(
    const Byte* in, Element* out, const Element* table, Bits32 channels, Bits32 pixels, Bits32 images) {
    const Threads my = threads();
    const Bits32 row = pixels / 16;
    const Count all = (Count)row * channels * images;
    for (Count i = my.first; i < all; i += my.all) {
        const Element* values = table + 256 * (Bits32)((i / row) % channels);
        const uint4 bytes = ((const uint4*)in)[i];
        const Bits32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
        Sixteen<Element> converted;
#pragma unroll
        for (int k = 0; k < 16; k++) converted.elements[k] = values[(words[k / 4] >> (8 * (k % 4))) & 255];
        ((Sixteen<Element>*)out)[i] = converted;
    }
}

template <class Element>
__device__ __forceinline__ void planes(
    const Byte* in, Element* out, const Element* all_values, Bits32 channels, Bits32 pixels, Bits32 images) {
    const Element* table = shared_table(all_values, channels);
    // A plane that is no multiple of sixteen pixels, or an address that is none, forbids wide loads.
    if (pixels % 16 == 0 && (((Count)in | (Count)out) & 15) == 0) {
        planes_by_sixteen(in, out, table, channels, pixels, images);
        return;
    }
    const Threads my = threads();
    const Count all = (Count)pixels * channels * images;
    for (Count i = my.first; i < all; i += my.all) out[i] = table[256 * (Bits32)((i / pixels) % channels) + in[i]];
}

// One pixel at a time, with all its channels.
template <class Element>
__device__ __forceinline__ void interleaved(
    const Byte* in, Element* out, const Element* all_values, Bits32 channels, Bits32 pixels, Bits32 images) {
    const Element* table = shared_table(all_values, channels);
    const Threads my = threads();
    const Count all = (Count)pixels * images;
    for (Count i = my.first; i < all; i += my.all) {
        const Byte* pixel = in + (i / pixels) * pixels * channels + i % pixels;
        for (Bits32 channel = 0; channel < channels; channel++)
            out[i * channels + channel] = table[256 * channel + pixel[(Count)channel * pixels]];
    }
}

#define KERNEL(name, layout, Element)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) name(                                                          \
        const Byte* in, Element* out, const Element* table, Bits32 channels, Bits32 pixels, Bits32 images) {         \
        layout<Element>(in, out, table, channels, pixels, images);                                                   \
    }

KERNEL(coprep_planes_16, planes, Bits16)
KERNEL(coprep_planes_32, planes, Bits32)
KERNEL(coprep_interleaved_16, interleaved, Bits16)
KERNEL(coprep_interleaved_32, interleaved, Bits32)
