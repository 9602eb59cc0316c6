/* stream_client: keeps a number of server-sent event streams running, and times them.
 *
 *   stream_client PORT PATH BODY_FILE STREAMS SECONDS MAX_STREAMS RAMP_MS DRAIN_S [HEADER ...]
 *
 * STREAMS at a time over keep-alive connections to 127.0.0.1:PORT, started evenly over the first
 * RAMP_MS. No new one starts after SECONDS, or after MAX_STREAMS; those under way then have
 * DRAIN_S to end. A stream is complete only with status 200, a whole body and `data: [DONE]`.
 * One thread, epoll; prints one JSON object, times in microseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 256
#define SAMPLE 120

enum state { HEAD, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, SIZED, UNTIL_CLOSE };

typedef struct {
    int fd, active, fresh, keep, code, done_seen;
    enum state state;
    char text[8192]; /* the head, later a chunk's size line */
    size_t text_len, left;
    int matched, at_line_start, trailer_text;
    long events;
    uint64_t started, first, previous, start_at;
} stream;

typedef struct {
    uint32_t *us;
    size_t n, cap;
} timings;

static const char DONE[] = "data: [DONE]";
static int port, ep;
static char *request;
static size_t request_len;
static timings ttft, total, gap;
static long n_started, n_complete, n_bad_status, n_truncated, n_no_done, n_connect, n_events;
static char sample[SAMPLE + 1]; /* what the first answers other than 200 said */
static size_t sample_len;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void note(timings *t, uint64_t us) {
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 4096;
        t->us = realloc(t->us, t->cap * sizeof *t->us);
    }
    t->us[t->n++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

/* ---- connections ---------------------------------------------------------------------- */

static void hang_up(stream *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

static int dial(stream *s) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s->fd, (void *)&a, sizeof a)) {
        hang_up(s);
        return -1;
    }
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
    return epoll_ctl(ep, EPOLL_CTL_ADD, s->fd, &e);
}

static void begin(stream *s, uint64_t now) {
    s->fresh = s->fd < 0;
    if (s->fresh && dial(s)) {
        n_connect++;
        s->start_at = now + 20000;
        return;
    }
    s->state = HEAD;
    s->active = s->keep = s->at_line_start = 1;
    s->code = s->done_seen = s->matched = 0;
    s->text_len = s->left = 0;
    s->events = 0;
    s->first = 0;
    s->started = now_us();
    n_started++;
    for (size_t sent = 0; sent < request_len;) { /* a blocking send: these bodies are small */
        ssize_t n = send(s->fd, request + sent, request_len - sent, MSG_NOSIGNAL);
        if (n > 0) sent += (size_t)n;
        else if (errno != EINTR) break; /* the read that follows reports it */
    }
}

static void finish(stream *s, int whole) {
    s->active = 0;
    n_events += s->events;
    if (s->code && s->code != 200) n_bad_status++;
    else if (!whole) n_truncated++;
    else if (!s->done_seen) n_no_done++;
    else {
        n_complete++;
        note(&total, now_us() - s->started);
    }
    if (!whole || !s->keep) hang_up(s);
}

/* ---- parsing -------------------------------------------------------------------------- */

/* Counts lines that begin with "data:", however the bytes were cut, and looks for [DONE]. */
static void scan(stream *s, const char *p, size_t n, uint64_t now) {
    int saw = 0;
    if (s->code != 200) {
        for (size_t i = 0; i < n && sample_len < SAMPLE; i++)
            sample[sample_len++] = p[i] < 32 || p[i] == '"' || p[i] == '\\' ? ' ' : p[i];
        return;
    }
    for (size_t i = 0; i < n;) {
        if (!s->at_line_start) {
            const char *newline = memchr(p + i, '\n', n - i);
            if (!newline) break;
            i = (size_t)(newline - p) + 1;
            s->at_line_start = 1;
            s->matched = 0;
        } else if (p[i] == '\n') {
            s->matched = 0;
            i++;
        } else if (p[i] == DONE[s->matched]) {
            s->matched++;
            i++;
            if (s->matched == 5) s->events++, saw = 1, s->done_seen = 0;
            if (s->matched == (int)sizeof DONE - 1) s->done_seen = 1, s->at_line_start = 0;
        } else {
            s->at_line_start = 0;
        }
    }
    if (!saw) return;
    if (s->first) note(&gap, now - s->previous);
    else note(&ttft, now - s->started), s->first = now;
    s->previous = now;
}

static void read_head(stream *s) {
    char *length;
    s->text[s->text_len] = 0;
    s->code = atoi(s->text + 9);
    s->text_len = 0;
    if (s->code == 100) return;
    s->keep = !strcasestr(s->text, "\r\nconnection: close");
    if (strcasestr(s->text, "\r\ntransfer-encoding: chunked")) s->state = CHUNK_SIZE;
    else if ((length = strcasestr(s->text, "\r\ncontent-length:"))) {
        s->left = strtoul(length + 17, NULL, 10);
        s->state = SIZED;
        if (!s->left) finish(s, 1);
    } else s->state = UNTIL_CLOSE;
}

static void feed(stream *s, const char *p, size_t n, uint64_t now) {
    for (size_t i = 0; i < n && s->active;) {
        size_t part = n - i < s->left ? n - i : s->left;
        switch (s->state) {
        case HEAD:
            if (s->text_len == sizeof s->text - 1) {
                finish(s, 0);
                return;
            }
            s->text[s->text_len++] = p[i++];
            if (s->text_len >= 4 && !memcmp(s->text + s->text_len - 4, "\r\n\r\n", 4)) read_head(s);
            break;
        case CHUNK_SIZE:
            if (p[i] != '\n') {
                if (s->text_len < 30) s->text[s->text_len++] = p[i];
            } else {
                s->text[s->text_len] = 0;
                s->text_len = 0;
                s->left = strtoul(s->text, NULL, 16);
                s->state = s->left ? CHUNK_DATA : TRAILER;
                s->trailer_text = 0;
            }
            i++;
            break;
        case CHUNK_DATA:
        case SIZED:
            scan(s, p + i, part, now);
            i += part;
            s->left -= part;
            if (s->left) break;
            if (s->state == SIZED) finish(s, 1);
            else s->state = CHUNK_END;
            break;
        case CHUNK_END:
            if (p[i++] == '\n') s->state = CHUNK_SIZE;
            break;
        case TRAILER:
            if (p[i] == '\n' && !s->trailer_text) finish(s, 1);
            if (p[i] == '\n') s->trailer_text = 0;
            else if (p[i] != '\r') s->trailer_text = 1;
            i++;
            break;
        case UNTIL_CLOSE:
            scan(s, p + i, n - i, now);
            i = n;
            break;
        }
    }
}

static void receive(stream *s) {
    static char buffer[1 << 18];
    ssize_t got = recv(s->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
        if (s->active) feed(s, buffer, (size_t)got, now_us());
        return;
    }
    if (s->active && s->state == UNTIL_CLOSE) finish(s, 1);
    else if (s->active && s->state == HEAD && !s->text_len && !s->fresh) {
        n_started--; /* an idle connection closed under our feet: not an answer, so try again */
        s->active = 0;
    } else if (s->active) finish(s, 0);
    hang_up(s);
}

/* ---- main ----------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_percentiles(const char *name, timings *t) {
    if (t->n) qsort(t->us, t->n, sizeof *t->us, by_value);
    printf("\"%s\":{\"p50\":%u,\"p99\":%u},", name, t->n ? t->us[t->n / 2] : 0,
           t->n ? t->us[t->n * 99 / 100] : 0);
}

static void build_request(const char *path, const char *file, char **headers, int n_headers) {
    FILE *f = fopen(file, "rb");
    if (!f) {
        perror(file);
        exit(2);
    }
    fseek(f, 0, SEEK_END);
    size_t body_len = (size_t)ftell(f);
    rewind(f);
    size_t head_cap = 1024 + strlen(path);
    for (int i = 0; i < n_headers; i++) head_cap += strlen(headers[i]) + 2;
    request = malloc(head_cap + body_len);
    if (!request) exit(2);
    char *end = request;
    end += sprintf(end,
                   "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                   "Accept: */*\r\nContent-Length: %zu\r\n",
                   path, port, body_len);
    for (int i = 0; i < n_headers; i++) end += sprintf(end, "%s\r\n", headers[i]);
    end += sprintf(end, "\r\n");
    if (fread(end, 1, body_len, f) != body_len) exit(2);
    fclose(f);
    request_len = (size_t)(end - request) + body_len;
}

int main(int argc, char **argv) {
    if (argc < 9) {
        fprintf(stderr, "usage: stream_client PORT PATH BODY_FILE STREAMS SECONDS MAX_STREAMS "
                        "RAMP_MS DRAIN_S [HEADER ...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    port = atoi(argv[1]);
    int n_streams = atoi(argv[4]);
    long max_streams = atol(argv[6]);
    build_request(argv[2], argv[3], argv + 9, argc - 9);
    ep = epoll_create1(EPOLL_CLOEXEC);

    uint64_t origin = now_us(), last_byte = origin;
    uint64_t end = origin + (uint64_t)(atof(argv[5]) * 1e6);
    uint64_t deadline = end + (uint64_t)(atof(argv[8]) * 1e6);
    uint64_t ramp_us = (uint64_t)atol(argv[7]) * 1000u;
    stream *streams = calloc((size_t)n_streams, sizeof *streams);
    for (int i = 0; i < n_streams; i++) {
        streams[i].fd = -1;
        streams[i].start_at = origin + ramp_us * (uint64_t)i / (uint64_t)n_streams;
    }
    for (;;) {
        uint64_t now = now_us();
        int active = 0, may_start = now < end && n_started < max_streams;
        uint64_t next = now + 100000;
        for (int i = 0; i < n_streams; i++) {
            stream *s = &streams[i];
            if (!s->active && may_start && n_started < max_streams) {
                if (s->start_at <= now) begin(s, now);
                if (!s->active && s->start_at < next) next = s->start_at;
            }
            active += s->active;
        }
        if ((!active && !may_start) || now > deadline) break;
        struct epoll_event events[BATCH];
        int n = epoll_wait(ep, events, BATCH, (int)((next - now) / 1000) + 1);
        for (int i = 0; i < n; i++) {
            stream *s = events[i].data.ptr;
            if (s->fd < 0) continue;
            receive(s);
            last_byte = now_us();
        }
    }
    long unfinished = 0;
    for (int i = 0; i < n_streams; i++) {
        unfinished += streams[i].active;
        if (streams[i].active) n_events += streams[i].events;
    }
    printf("{");
    print_percentiles("ttft", &ttft);
    print_percentiles("total", &total);
    print_percentiles("gap", &gap);
    printf("\"wall_s\":%.4f,\"started\":%ld,\"complete\":%ld,\"bad_status\":%ld,\"truncated\":%ld,"
           "\"no_done\":%ld,\"unfinished\":%ld,\"connect_errors\":%ld,\"events\":%ld,"
           "\"bad_sample\":\"%s\"}\n",
           (double)(last_byte - origin) / 1e6, n_started, n_complete, n_bad_status, n_truncated,
           n_no_done, unfinished, n_connect, n_events, sample);
    free(streams);
    return 0;
}
