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
#include <sys/uio.h>
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
    unsigned char *slots; /* memory of `depth` blocks of zr_read_rows */
    size_t slot_size;
    int is_registered;
};

static int enter(int fd, unsigned submit, unsigned wait) {
    return (int)syscall(__NR_io_uring_enter, fd, submit, wait, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* Submits requests and waits for some of those in flight; returns an errno if the ring fails, after which it polls.
 *
 * Then nothing was submitted: the unsent requests are withdrawn, and those that are in flight still end.
 */
static int submit(struct ring *ring, unsigned tail, unsigned wait, unsigned *unsent, unsigned *in_flight,
                  int *ring_failed) {
    int sent = *ring_failed ? (usleep(1000), 0) : enter(ring->fd, *unsent, wait);
    if (sent >= 0) {
        *unsent -= (unsigned)sent;
        return 0;
    }
    if (errno == EINTR || errno == EAGAIN || errno == EBUSY) return 0;
    int problem = errno;
    *ring_failed = 1;
    atomic_store_explicit(ring->sq_tail, tail - *unsent, memory_order_release);
    *in_flight -= *unsent;
    *unsent = 0;
    return problem;
}

void zr_close(struct ring *ring) {
    if (ring == NULL) return;
    if (ring->sqes) munmap(ring->sqes, ring->sqes_size);
    if (ring->map) munmap(ring->map, ring->map_size);
    if (ring->fd >= 0) close(ring->fd);
    if (ring->slots) munmap(ring->slots, ring->depth * ring->slot_size);
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
        int error = submit(ring, tail, wait > 0 ? wait : 1, &unsent, &in_flight, &ring_failed);
        if (error && !problem) problem = error, *failed = next > 0 ? next - 1 : 0;
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

/* Rows of a file that stand in blocks of it. */
struct rows {
    int64_t count, per_block, stride, width; /* rows; rows of a block; bytes of a block, and of a row */
    const int64_t *ids, *places;             /* all ids, and the places of these rows among them, by rising id */
    uint8_t *out;                            /* where the row of each place goes */
    int64_t reads;                           /* counts the reads */
    int32_t file, most;                      /* reads that may be in flight at a time */
};

struct slot {
    int64_t table, first, end, done; /* the rows of its block, and the bytes that have arrived */
};

/* Makes memory for a block of each request; the kernel knows it in advance where it may. Returns an errno. */
static int make_slots(struct ring *ring, size_t size) {
    if (ring->slot_size >= size) return 0;
    if (ring->is_registered) syscall(__NR_io_uring_register, ring->fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
    if (ring->slots) munmap(ring->slots, ring->depth * ring->slot_size);
    ring->slots = NULL, ring->slot_size = 0, ring->is_registered = 0;
    void *memory = mmap(NULL, ring->depth * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return errno;
    ring->slots = memory, ring->slot_size = size;
    struct iovec all = {memory, ring->depth * size};
    ring->is_registered = syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &all, 1) == 0;
    return 0;
}

/* Reads the blocks of rows of several tables, `most` at a time, and copies the rows out of them.
 *
 * Rows that are neighbours in their list and in a block share a read. Returns 0, or an errno with the table in *failed
 * and the offset of the block in *at.
 */
int zr_read_rows(struct ring *ring, int64_t count, struct rows *tables, int64_t most, int64_t *failed, int64_t *at) {
    size_t size = 0;
    int64_t rest = 0, *next = calloc(2 * (size_t)count + 1, sizeof *next), *in_flight_of = next + count;
    struct slot *slots = calloc(ring->depth, sizeof *slots);
    unsigned *idle = calloc(ring->depth, sizeof *idle), idle_count = 0, in_flight = 0, unsent = 0, again = 0;
    int problem = next == NULL || slots == NULL || idle == NULL ? ENOMEM : 0, ring_failed = 0;
    *failed = *at = 0;
    for (int64_t t = 0; t < count && !problem; t++) {
        if ((size_t)tables[t].stride > size) size = (size_t)tables[t].stride;
        rest += tables[t].count;
    }
    if (!problem) problem = make_slots(ring, size);
    if (most > ring->depth) most = ring->depth;
    for (unsigned each = 0; each < ring->depth && !problem; each++) idle[idle_count++] = ring->depth - 1 - each;
    while (1) {
        unsigned tail = atomic_load_explicit(ring->sq_tail, memory_order_relaxed);
        for (int64_t t = 0, full = 0; !problem && full < count && (again > 0 || (rest > 0 && in_flight < most));) {
            unsigned number;
            if (again > 0) number = (unsigned)ring->again[--again];
            else {
                struct rows *table = &tables[t];
                int64_t first = next[t];
                if (first == table->count || in_flight_of[t] == table->most) {
                    full++, t = (t + 1) % count;
                    continue;
                }
                int64_t block = table->ids[table->places[first]] / table->per_block, end = first + 1;
                while (end < table->count && table->ids[table->places[end]] / table->per_block == block) end++;
                number = idle[--idle_count];
                slots[number] = (struct slot){t, first, end, 0};
                next[t] = end, rest -= end - first;
                table->reads++, in_flight_of[t]++, in_flight++;
                full = 0, t = (t + 1) % count;
            }
            struct slot *slot = &slots[number];
            struct rows *table = &tables[slot->table];
            struct io_uring_sqe *sqe = &ring->sqes[tail & ring->sq_mask];
            memset(sqe, 0, sizeof *sqe);
            sqe->opcode = ring->is_registered ? IORING_OP_READ_FIXED : IORING_OP_READ;
            sqe->fd = table->file;
            sqe->off = (uint64_t)(table->ids[table->places[slot->first]] / table->per_block * table->stride + slot->done);
            sqe->addr = (uint64_t)(uintptr_t)(ring->slots + number * ring->slot_size + slot->done);
            sqe->len = (unsigned)(table->stride - slot->done);
            sqe->user_data = number;
            ring->sq_array[tail & ring->sq_mask] = tail & ring->sq_mask;
            tail++, unsent++;
        }
        atomic_store_explicit(ring->sq_tail, tail, memory_order_release);
        if (in_flight == 0) break;
        /* Waits for a quarter of the reads while there are more to submit, and for all of them at the end. */
        unsigned wait = !problem && rest > 0 && in_flight > 3 ? in_flight / 4 : in_flight;
        int error = submit(ring, tail, wait, &unsent, &in_flight, &ring_failed);
        if (error && !problem) problem = error;
        unsigned head = atomic_load_explicit(ring->cq_head, memory_order_relaxed);
        unsigned end = atomic_load_explicit(ring->cq_tail, memory_order_acquire);
        for (; head != end; head++) {
            struct io_uring_cqe *cqe = &ring->cqes[head & ring->cq_mask];
            unsigned number = (unsigned)cqe->user_data;
            struct slot *slot = &slots[number];
            struct rows *table = &tables[slot->table];
            if (cqe->res > 0) slot->done += cqe->res;
            if ((cqe->res > 0 && slot->done < table->stride) || cqe->res == -EINTR || cqe->res == -EAGAIN) {
                if (!problem) {
                    ring->again[again++] = number;
                    continue;
                }
            } else if (cqe->res <= 0 && !problem) {
                problem = cqe->res == 0 ? ENODATA : -cqe->res;
                *failed = slot->table;
                *at = table->ids[table->places[slot->first]] / table->per_block * table->stride;
            }
            for (int64_t i = slot->first; i < slot->end && !problem; i++) {
                int64_t place = table->places[i], row = table->ids[place] % table->per_block;
                const unsigned char *from = ring->slots + number * ring->slot_size + row * table->width;
                memcpy(table->out + place * table->width, from, (size_t)table->width);
            }
            idle[idle_count++] = number, in_flight_of[slot->table]--, in_flight--;
        }
        atomic_store_explicit(ring->cq_head, head, memory_order_release);
        if (problem) in_flight -= again, again = 0; /* these are not in flight any more */
    }
    free(next);
    free(slots);
    free(idle);
    return problem;
}
