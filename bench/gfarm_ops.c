/* Operations per second of Gfarm by its own library: gfarm_ops DIR COUNT LETTERS.
 *
 * The letters are those of grid/client/examples/grid_bench.rs: c create an empty file, s lstat, r rename there and
 * back (two operations), d read the directory with attributes (an entry is one), u unlink, w create and write 4 KiB,
 * R open and read 4 KiB, m mkdir, x rmdir; W and S write and read one file of COUNT bytes. One caller that waits.
 * Prints one JSON object for each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
/* Needs what stands above. */
#include <gfarm/gfarm.h>

#define SMALL 4096
#define BLOCK (1 << 20)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void need(gfarm_error_t e, const char *what, const char *path)
{
	if (e == GFARM_ERR_NO_ERROR)
		return;
	fprintf(stderr, "gfarm_ops: %s %s: %s\n", what, path, gfarm_error_string(e));
	exit(1);
}

static char block[BLOCK];

/* Writes a new file of so many bytes. */
static void create(const char *path, long long bytes)
{
	GFS_File f;
	int n;

	need(gfs_pio_create(path, GFARM_FILE_WRONLY | GFARM_FILE_TRUNC, 0644, &f), "create", path);
	while (bytes > 0) {
		int want = bytes < BLOCK ? (int)bytes : BLOCK;

		need(gfs_pio_write(f, block, want, &n), "write", path);
		bytes -= n;
	}
	need(gfs_pio_close(f), "close", path);
}

static void read_whole(const char *path, long long bytes)
{
	GFS_File f;
	int n;

	need(gfs_pio_open(path, GFARM_FILE_RDONLY, &f), "open", path);
	do {
		need(gfs_pio_read(f, block, BLOCK, &n), "read", path);
		bytes -= n;
	} while (n > 0 && bytes > 0);
	need(gfs_pio_close(f), "close", path);
	if (bytes != 0) {
		fprintf(stderr, "gfarm_ops: %s: %lld bytes are missing\n", path, bytes);
		exit(1);
	}
}

static long long list(const char *dir)
{
	GFS_DirPlus d;
	struct gfs_dirent *entry;
	struct gfs_stat *status;
	gfarm_error_t e;
	long long entries = 0;

	need(gfs_opendirplus(dir, &d), "opendir", dir);
	while ((e = gfs_readdirplus(d, &entry, &status)) == GFARM_ERR_NO_ERROR && entry != NULL)
		entries += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	need(e, "readdir", dir);
	need(gfs_closedirplus(d), "closedir", dir);
	return entries;
}

static long long one(char letter, const char *dir, long long i)
{
	char path[1024], other[1024];
	struct gfs_stat status;

	snprintf(path, sizeof path, "%s/f%07lld", dir, i);
	snprintf(other, sizeof other, "%s/g%07lld", dir, i);
	switch (letter) {
	case 'c': create(path, 0); break;
	case 'w': create(path, SMALL); break;
	case 'R': read_whole(path, SMALL); break;
	case 's':
		need(gfs_lstat(path, &status), "stat", path);
		gfs_stat_free(&status);
		break;
	case 'u': need(gfs_unlink(path), "unlink", path); break;
	case 'm': need(gfs_mkdir(path, 0755), "mkdir", path); break;
	case 'x': need(gfs_rmdir(path), "rmdir", path); break;
	case 'r':
		need(gfs_rename(path, other), "rename", path);
		need(gfs_rename(other, path), "rename", other);
		return 2;
	default:
		fprintf(stderr, "gfarm_ops: operation %c is not known\n", letter);
		exit(2);
	}
	return 1;
}

int main(int argc, char **argv)
{
	long long count, done, i;
	const char *letter;
	char large[1024];
	double begun, seconds;

	need(gfarm_initialize(&argc, &argv), "gfarm_initialize", "");
	if (argc != 4) {
		fprintf(stderr, "usage: gfarm_ops DIR COUNT LETTERS\n");
		return 2;
	}
	count = atoll(argv[2]);
	memset(block, 'x', sizeof block);
	snprintf(large, sizeof large, "%s/large", argv[1]);
	for (letter = argv[3]; *letter; letter++) {
		done = 0;
		begun = now();
		if (*letter == 'd') {
			done = list(argv[1]);
		} else if (*letter == 'W') {
			create(large, count);
			done = count;
		} else if (*letter == 'S') {
			read_whole(large, count);
			done = count;
		} else {
			for (i = 0; i < count; i++)
				done += one(*letter, argv[1], i);
		}
		seconds = now() - begun;
		printf("{\"operation\":\"%c\",\"callers\":1,\"operations\":%lld,\"seconds\":%.6f,\"per_second\":%.1f}\n",
		       *letter, done, seconds, done / seconds);
		fflush(stdout);
	}
	need(gfarm_terminate(), "gfarm_terminate", "");
	return 0;
}
