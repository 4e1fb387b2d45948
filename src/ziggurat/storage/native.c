/* Concurrent transfers between files and memory with Linux's io_uring; needs no library but libc.
 *
 * A ring may be used by one thread at a time. zr_transfer returns when all of its requests have ended, even if one of
 * them has failed, so that the kernel does not use the memory afterwards.
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    int fd;
    unsigned depth;
    void *map;
    size_t map_size;
    struct io_uring_sqe *sqes;
    size_t sqes_size;
    _Atomic unsigned *sq_tail, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask;
    unsigned *sq_array;
    struct io_uring_cqe *cqes;
    int64_t *again;
};

static int enter(int fd, unsigned submit, unsigned wait) {
    return (int)syscall(__NR_io_uring_enter, fd, submit, wait, IORING_ENTER_GETEVENTS, NULL, 0);
}

void zr_close(struct ring *ring) {
    if (ring == NULL) return;
    if (ring->sqes) munmap(ring->sqes, ring->sqes_size);
    if (ring->map) munmap(ring->map, ring->map_size);
    if (ring->fd >= 0) close(ring->fd);
    free(ring->again);
    free(ring);
}

/* Returns a ring for up to `depth` requests at a time, or NULL with an errno in *problem if the kernel refuses. */
struct ring *zr_open(unsigned depth, int *problem) {
    struct io_uring_params params;
    struct ring *ring = calloc(1, sizeof *ring);
    if (ring == NULL) {
        *problem = ENOMEM;
        return NULL;
    }
    memset(&params, 0, sizeof params);
    ring->fd = (int)syscall(__NR_io_uring_setup, depth, &params);
    /* Linux 5.6, which introduced this feature, also introduced non-vectored reads and writes. */
    unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
    if (ring->fd < 0 || (params.features & needed) != needed) {
        *problem = ring->fd < 0 ? errno : ENOSYS;
        zr_close(ring);
        return NULL;
    }
    size_t sq_size = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq_size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    ring->map_size = sq_size > cq_size ? sq_size : cq_size;
    ring->sqes_size = params.sq_entries * sizeof(struct io_uring_sqe);
    void *map = mmap(NULL, ring->map_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
    ring->map = map == MAP_FAILED ? NULL : map;
    void *sqes = mmap(NULL, ring->sqes_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
    ring->sqes = sqes == MAP_FAILED ? NULL : sqes;
    ring->depth = params.sq_entries;
    ring->again = malloc(ring->depth * sizeof *ring->again);
    if (ring->map == NULL || ring->sqes == NULL || ring->again == NULL) {
        *problem = ENOMEM;
        zr_close(ring);
        return NULL;
    }
    char *at = ring->map;
    ring->sq_tail = (_Atomic unsigned *)(at + params.sq_off.tail);
    ring->sq_mask = *(unsigned *)(at + params.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(at + params.sq_off.array);
    ring->cq_head = (_Atomic unsigned *)(at + params.cq_off.head);
    ring->cq_tail = (_Atomic unsigned *)(at + params.cq_off.tail);
    ring->cq_mask = *(unsigned *)(at + params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(at + params.cq_off.cqes);
    return ring;
}

/* Transfers `count` file ranges: reads lengths[i] bytes at offsets[i] of files[i] to addresses[i], or writes them.
 *
 * Returns 0, or an errno with the range's index in *failed; ENODATA: the file ends before the end of the range. Short
 * reads and writes are continued.
 */
int zr_transfer(struct ring *ring, int writing, int64_t count, const int32_t *files, const int64_t *offsets,
                const int64_t *lengths, const int64_t *addresses, int64_t *failed) {
    int64_t next = 0;
    unsigned in_flight = 0, repeated = 0, unsent = 0;
    int problem = 0, ring_failed = 0;
    int64_t *done = calloc((size_t)count + 1, sizeof *done);
    if (done == NULL) return ENOMEM;
    while (1) {
        unsigned tail = atomic_load_explicit(ring->sq_tail, memory_order_relaxed);
        while (!problem && in_flight < ring->depth && (repeated > 0 || next < count)) {
            int64_t i = repeated > 0 ? ring->again[--repeated] : next++;
            struct io_uring_sqe *sqe = &ring->sqes[tail & ring->sq_mask];
            memset(sqe, 0, sizeof *sqe);
            sqe->opcode = writing ? IORING_OP_WRITE : IORING_OP_READ;
            sqe->fd = files[i];
            sqe->off = (uint64_t)(offsets[i] + done[i]);
            sqe->addr = (uint64_t)(addresses[i] + done[i]);
            sqe->len = (unsigned)(lengths[i] - done[i]);
            sqe->user_data = (uint64_t)i;
            ring->sq_array[tail & ring->sq_mask] = tail & ring->sq_mask;
            tail++, in_flight++, unsent++;
        }
        atomic_store_explicit(ring->sq_tail, tail, memory_order_release);
        if (in_flight == 0) break;
        /* Waits for a quarter of the ring while there is more to submit, and for all of it at the end. */
        unsigned wait = (!problem && next < count && in_flight > ring->depth / 4) ? ring->depth / 4 : in_flight;
        int sent = ring_failed ? (usleep(1000), 0) : enter(ring->fd, unsent, wait > 0 ? wait : 1);
        if (sent < 0) {
            if (errno == EINTR || errno == EAGAIN || errno == EBUSY) sent = 0;
            else {
                /* Nothing was submitted: withdraw the unsent requests, then poll for those that are in flight. */
                ring_failed = 1;
                if (!problem) problem = errno, *failed = next > 0 ? next - 1 : 0;
                atomic_store_explicit(ring->sq_tail, tail - unsent, memory_order_release);
                in_flight -= unsent;
                unsent = 0;
                if (in_flight == 0) break;
                sent = 0;
            }
        }
        unsent -= (unsigned)sent;
        unsigned head = atomic_load_explicit(ring->cq_head, memory_order_relaxed);
        unsigned end = atomic_load_explicit(ring->cq_tail, memory_order_acquire);
        for (; head != end; head++) {
            struct io_uring_cqe *cqe = &ring->cqes[head & ring->cq_mask];
            int64_t i = (int64_t)cqe->user_data;
            in_flight--;
            if (cqe->res > 0 && done[i] + cqe->res < lengths[i]) {
                done[i] += cqe->res;
                ring->again[repeated++] = i;
            } else if (cqe->res == -EINTR || cqe->res == -EAGAIN) {
                ring->again[repeated++] = i;
            } else if (cqe->res <= 0 && !problem) {
                problem = cqe->res == 0 ? ENODATA : -cqe->res;
                *failed = i;
            }
        }
        atomic_store_explicit(ring->cq_head, head, memory_order_release);
    }
    free(done);
    return problem;
}
