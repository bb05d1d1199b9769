/* SPDX-License-Identifier: MIT */
/*
 * Everything that Shoal asks of Linux and that other systems lack or do differently: a port replaces this folder. Each
 * function is one request to the kernel, without policy; its callers make error texts and statuses.
 *
 * Unless said otherwise a function returns what the system call does, -1 and errno for a failure. Test builds can make
 * each of them fail: base/os/fault.h.
 */
#ifndef BASE_OS_OS_H
#define BASE_OS_OS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory that processes share (memory.c) --------------------------------------------------------------- */

/* A file without a name, of no bytes; a label for /proc. Returns the descriptor. */
int os_memory_file(const char *label);
/* Gives the file its size, without memory. */
int os_memory_file_resize(int fd, size_t bytes);
/* Gives the file the memory for `bytes` bytes from `offset` on, and a size that has room for them. */
int os_memory_file_reserve(int fd, size_t offset, size_t bytes);
/* Takes back the memory of whole pages, which then hold zeros. The size stays. */
int os_memory_file_release(int fd, size_t offset, size_t bytes);
/* Nobody can change the size any more. */
int os_memory_file_seal(int fd);
/* Whether nobody can make it smaller. */
bool os_memory_file_is_sealed(int fd);

/* Maps a file. Returns NULL if that fails; errno says why. */
void *os_map(int fd, size_t bytes);
/* Maps the pages of a shared mapping at a second address, to be read only. Returns NULL if that fails; errno says
   why. */
void *os_map_again(void *base, size_t bytes);
/* Fails only for addresses that are not mapped. */
void os_unmap(void *base, size_t bytes);
/* A hint: these bytes, which begin and end at multiples of a large page, are better held in large pages. */
void os_prefer_large_pages(void *base, size_t bytes);
/* Makes pages present, as if they were written, without changing them. Older kernels refuse it. */
int os_populate(void *base, size_t bytes);

/* Memory of another process (process.c) --------------------------------------------------------------- */

/* The number of this process, as processes of its namespace know it. */
int64_t os_process(void);
/*
 * Copies out of the memory of a process. Returns the bytes that were copied, which may be fewer: up to the first that
 * cannot be read there or written here. EPERM, ENOSYS: the system does not allow it. ESRCH: there is no such process.
 */
int64_t os_read_process(int64_t process, uint64_t address, void *target, size_t bytes);
/*
 * Lets processes that have the same parent, and their children, read the memory of this one, where the kernel would
 * otherwise allow that to its parents alone (Yama's ptrace_scope 1). Changes nothing elsewhere. What the process may have
 * allowed before (PR_SET_PTRACER) is replaced.
 */
void os_let_siblings_read(void);
/* A descriptor of this process for one of another process, which must let it be read. -1 with errno set: `call_out` then
   names the call that failed. */
int os_take_descriptor(int64_t process, int fd, const char **call_out);

/* Locks that the kernel drops with their process (lock.c) ---------------------------------------------- */

/* Not inherited by children, and dropped when the process closes any descriptor of the file. EAGAIN, EACCES: taken. */
int os_lock_byte(int fd, int64_t byte);
void os_unlock_byte(int fd, int64_t byte);
/* Whether another process has it; true if the kernel does not say. */
bool os_is_byte_locked(int fd, int64_t byte);

/* Sleeping and waking (wait.c) ------------------------------------------------------------------------- */

/*
 * Sleeps while the word is `value`. Returns 0 when it was woken, when an instant of the monotonic clock has passed
 * (INT64_MAX means never), and also without a reason: the caller must look at the word again.
 */
int os_sleep_on_word(_Atomic uint32_t *word, uint32_t value, int64_t until_ns, bool is_shared);
void os_wake_all(_Atomic uint32_t *word, bool is_shared);
/* Lets another thread that can run on this processor have it; returns at once if there is none. */
void os_yield(void);

/* A descriptor that can be polled for input once it was set. */
int os_event(void);
void os_event_set(int fd);
/* Whether the number is still that of an event: programs may close descriptors that are not theirs. */
bool os_is_event(int fd);

/* Sockets with names that no file system knows (socket.c) ---------------------------------------------- */

/* Closed by exec, and never blocking; so in all of these. Names have up to OS_SOCKET_NAME_BYTES - 1 characters. */
#define OS_SOCKET_NAME_BYTES 100
int os_socket(void);
/* Takes the name, and listens. EADDRINUSE: somebody has it. */
int os_socket_listen(int fd, const char *name);
/* Whether the number is still that of a socket that listens. */
bool os_socket_is_listening(int fd);
/* Returns the descriptor of who came. EAGAIN: nobody. */
int os_socket_accept(int listener);
int os_socket_connect(int fd, const char *name);

/* Who is at the other end. */
struct os_peer {
    int64_t user;
    int64_t process;
};
int os_socket_peer(int fd, struct os_peer *peer_out);

/* The rest (misc.c) ------------------------------------------------------------------------------------ */

/* A second descriptor of the same thing, closed by exec. */
int os_duplicate(int fd);

/* Two names of one file system change places at once. EINVAL, ENOSYS: the file system, or the kernel, cannot. */
int os_exchange_names(const char *a, const char *b);

/* Reads as much of a small file as fits, such as one of /proc, and puts a zero byte behind it. Returns false if there
   is none, or it is empty. */
bool os_read_text(const char *path, char *text, size_t bytes);

/* Makes random bytes. Returns false if there are none; errno says why. */
bool os_random(void *bytes, size_t n_bytes);

/* Returns how many processors the thread may use; INT_MAX if they are more than the system can count. */
int os_n_processors(void);
/* Gives the processors that any thread may use, as bits; processors beyond them are left out. `thread` 0 is the calling
   thread. errno is ESRCH if there is no such thread. */
int os_get_processors(int64_t thread, uint64_t *words, size_t n_words);
/* Returns the processor that runs the thread now; -1 if the system does not say. */
int os_processor(void);
/* The only processors that a thread of this process may use; ESRCH: it has ended. */
int os_set_processors(int64_t thread, const uint64_t *words, size_t n_words);

/* A thread on which no signal of the program is handled. Returns the error code, 0 for none. */
int os_start_thread(pthread_t *thread_out, void *(*run)(void *context), void *context);

#endif
