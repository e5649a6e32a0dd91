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
// A kernel takes about as long as the GPU's memory takes to write the elements. So all stores to it are of 16 bytes,
// by neighbouring threads to neighbouring addresses. `make ptx` compiles this file; see build_ptx.py.

typedef unsigned char Byte;
typedef unsigned short Bits16;
typedef unsigned int Bits32;
typedef unsigned long long Count;

// Memory that the threads of a block share. It answers look-ups of 32 threads at a time.
extern __shared__ uint4 memory[];

// Bytes that become 16 bytes of elements, as one load.
template <class Element>
struct Load;
template <>
struct Load<Bits16> {
    typedef uint2 Bytes;
};
template <>
struct Load<Bits32> {
    typedef Bits32 Bytes;
};

__device__ __forceinline__ Bits32 byte_of(Bits32 bytes, int k) { return bytes >> (8 * k) & 255; }
__device__ __forceinline__ Bits32 byte_of(uint2 bytes, int k) { return byte_of(k < 4 ? bytes.x : bytes.y, k % 4); }

template <class Element>
struct alignas(16) Store {
    Element elements[16 / sizeof(Element)];
};

// Loads of a thread that are under way at a time, so that their latencies overlap.
constexpr int LOADS = 4;

// Converts a plane whose size and addresses allow wide loads and stores.
template <class Element>
__device__ __forceinline__ void wide_plane(
    const Byte* in, Element* out, const Element* values, Bits32 pixels, Bits32 first, Bits32 step) {
    typedef typename Load<Element>::Bytes Bytes;
    const Bits32 all = pixels / sizeof(Bytes);
    for (Bits32 i = first; i < all; i += LOADS * step) {
        Bytes bytes[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            if (i + k * step < all) bytes[k] = ((const Bytes*)in)[i + k * step];
#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            if (i + k * step >= all) break;
            Store<Element> converted;
#pragma unroll
            for (int j = 0; j < (int)sizeof(Bytes); j++) converted.elements[j] = values[byte_of(bytes[k], j)];
            ((Store<Element>*)out)[i + k * step] = converted;
        }
    }
}

// Blocks with the same y convert a plane together, those with the next y the next plane. Shared memory: 256 elements.
template <class Element>
__device__ __forceinline__ void planes(
    const Byte* in, Element* out, const Element* table, Bits32 channels, Bits32 pixels, Bits32 images) {
    // The values of the plane's channel.
    Element* values = (Element*)memory;
    const Bits32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const Bits32 width = sizeof(typename Load<Element>::Bytes);
    const bool is_wide = pixels % width == 0 && ((Count)in & (width - 1)) == 0 && ((Count)out & 15) == 0;
    const Count planes = (Count)channels * images;
    for (Count plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        const Element* of_channel = table + 256 * (Bits32)(plane % channels);
        // No thread may still look up values of the plane before.
        __syncthreads();
        for (Bits32 i = threadIdx.x; i < 256; i += blockDim.x) values[i] = of_channel[i];
        __syncthreads();
        const Byte* from = in + plane * pixels;
        Element* to = out + plane * pixels;
        if (is_wide)
            wide_plane(from, to, values, pixels, first, step);
        else
            for (Bits32 i = first; i < pixels; i += step) to[i] = values[from[i]];
    }
}

// Pixels of three channels that a thread converts at a time. The alignment lets it store them by wide stores.
constexpr Bits32 PIXELS = 4;
template <class Element>
struct alignas(4 * sizeof(Element)) Interleaved {
    Element elements[3 * PIXELS];
};

// Converts an image of three channels whose size and addresses allow wide loads and stores. A thread's pixels are more
// than 16 bytes in a row, so that its stores would not lie beside those of its neighbours. So a block collects all its
// pixels in `tile`, in shared memory, and stores them from there.
template <class Element>
__device__ __forceinline__ void wide_image_of_3(
    const Byte* in, Element* out, const Element* values, Interleaved<Element>* tile, Bits32 pixels) {
    const Bits32 of_block = PIXELS * blockDim.x, mine = PIXELS * threadIdx.x;
    for (Bits32 begin = blockIdx.x * of_block; begin < pixels; begin += gridDim.x * of_block) {
        const Bits32 count = pixels - begin < of_block ? pixels - begin : of_block;
        // No thread may still store elements of the tile before.
        __syncthreads();
        if (mine < count) {
            Bits32 bytes[3];
#pragma unroll
            for (int channel = 0; channel < 3; channel++)
                bytes[channel] = *(const Bits32*)(in + (Count)channel * pixels + begin + mine);
            Interleaved<Element> converted;
#pragma unroll
            for (int k = 0; k < 3 * (int)PIXELS; k++)
                converted.elements[k] = values[256 * (k % 3) + byte_of(bytes[k % 3], k / 3)];
            tile[threadIdx.x] = converted;
        }
        __syncthreads();
        Store<Element>* to = (Store<Element>*)(out + 3 * (Count)begin);
        const Bits32 stores = 3 * count * sizeof(Element) / sizeof(Store<Element>);
        for (Bits32 i = threadIdx.x; i < stores; i += blockDim.x) to[i] = ((const Store<Element>*)tile)[i];
    }
}

// Blocks with the same y convert an image together, those with the next y the next image.
//
// Shared memory: channels x 256 elements, and for three channels those of an `Interleaved` for each thread.
template <class Element>
__device__ __forceinline__ void interleaved(
    const Byte* in, Element* out, const Element* table, Bits32 channels, Bits32 pixels, Bits32 images) {
    Element* values = (Element*)memory;
    for (Bits32 i = threadIdx.x; i < channels * 256; i += blockDim.x) values[i] = table[i];
    __syncthreads();
    // Eight pixels of three channels fill 16 bytes several times, in any type of element.
    const bool is_wide = channels == 3 && pixels % 8 == 0 && ((Count)in & 3) == 0 && ((Count)out & 15) == 0;
    const Bits32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (Bits32 image = blockIdx.y; image < images; image += gridDim.y) {
        const Byte* from = in + (Count)image * channels * pixels;
        Element* to = out + (Count)image * channels * pixels;
        if (is_wide)
            wide_image_of_3(from, to, values, (Interleaved<Element>*)(values + 3 * 256), pixels);
        else
            for (Bits32 i = first; i < pixels; i += step)
                for (Bits32 channel = 0; channel < channels; channel++)
                    to[(Count)i * channels + channel] = values[256 * channel + from[(Count)channel * pixels + i]];
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
