/* SPDX-License-Identifier: MIT */
/* Launchers by their variables: every family, whole and in part; numbers that are none; several hosts. */
#include "bootstrap/meet/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/test.h"

static const char *const known[] = {
    "_SHOAL_OUTER",
    "SHOAL_RANK",
    "SHOAL_RANKS",
    "SHOAL_KEY",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "OMPI_MCA_orte_ess_jobid",
    "OMPI_MCA_ess_base_jobid",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_RESTART_COUNT",
};

/* Exactly these, as "NAME=value", and of the others none. */
static void set_environment(const char *const *variables)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        (void)unsetenv(known[i]);
    }
    for (; *variables; variables++) {
        char name[64];
        size_t length = strcspn(*variables, "=");
        (void)snprintf(name, sizeof name, "%.*s", (int)length, *variables);
        (void)setenv(name, *variables + length + 1, 1);
    }
}

#define SET(...) set_environment((const char *const[]){__VA_ARGS__, NULL})

static struct environment read_good(const char *launcher, int rank, int n_ranks)
{
    struct environment environment = {.launcher = "?"};
    CHECK_OK(environment_read(&environment));
    CHECK_STRING(environment.launcher, launcher);
    CHECK_INT(environment.rank, rank);
    CHECK_INT(environment.n_ranks, n_ranks);
    return environment;
}

static void check_bad(shoal_status status, const char *words)
{
    struct environment environment;
    CHECK_STATUS(environment_read(&environment), status);
    CHECK_ERROR_TEXT(words);
}

TEST(nothing_is_a_world_of_one)
{
    SET("HOME=/");
    (void)read_good("alone", 0, 1);
    char text[256];
    environment_describe(text, sizeof text);
    CHECK_STRING(text, "alone: rank 0 of 1");
}

TEST(each_family_is_read)
{
    SET("SHOAL_RANK=2", "SHOAL_RANKS=4", "SHOAL_KEY=k");
    (void)read_good("SHOAL", 2, 4);
    SET("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500");
    (void)read_good("torchrun", 1, 2);
    SET("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500", "LOCAL_WORLD_SIZE=2",
        "TORCHELASTIC_RUN_ID=x", "TORCHELASTIC_RESTART_COUNT=0");
    (void)read_good("torchrun", 1, 2);
    SET("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=3", "PMIX_NAMESPACE=prterun-1",
        "OMPI_COMM_WORLD_LOCAL_SIZE=3");
    (void)read_good("Open MPI", 0, 3);
    SET("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3", "OMPI_MCA_ess_base_jobid=77");
    (void)read_good("Open MPI", 2, 3);
    SET("SLURM_PROCID=5", "SLURM_NTASKS=6", "SLURM_JOB_ID=10", "SLURM_STEP_ID=0", "SLURM_NNODES=1");
    (void)read_good("Slurm", 5, 6);
    char text[256];
    environment_describe(text, sizeof text);
    CHECK_STRING(text, "Slurm: rank 5 of 6");
}

TEST(some_launchers_start_ranks_of_an_mpi)
{
    CHECK(environment_starts_mpi("Open MPI"));
    CHECK(environment_starts_mpi("PMI (MPICH)"));
    CHECK(!environment_starts_mpi("torchrun"));
    CHECK(!environment_starts_mpi("alone"));
}

TEST(pmi_is_known_by_its_socket)
{
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    char descriptor[32];
    (void)snprintf(descriptor, sizeof descriptor, "PMI_FD=%d", ends[0]);
    SET("PMI_RANK=1", "PMI_SIZE=2", descriptor, "MPI_LOCALNRANKS=2");
    struct environment first = read_good("PMI (MPICH)", 1, 2);
    SET("PMI_RANK=0", "PMI_SIZE=2", descriptor);
    struct environment second = read_good("PMI (MPICH)", 0, 2);
    CHECK_STRING(first.key, second.key);
    char pid[32];
    (void)snprintf(pid, sizeof pid, "\n%d ", (int)getpid());
    CHECK(strstr(first.key, pid) != NULL);
    CHECK(strstr(first.key, " 0\n") == NULL);
    SET("PMI_RANK=0", "PMI_SIZE=2", "PMI_FD=9999");
    check_bad(SHOAL_ERR_UNSUPPORTED, "PMI_FD is 9999");
    SET("PMI_RANK=0", "PMI_SIZE=2");
    check_bad(SHOAL_ERR_INVALID,
              "some variables of PMI (MPICH) are set in the environment, but PMI_FD is not");
    SET("PMI_RANK=0", "PMI_SIZE=1");
    (void)read_good("PMI (MPICH)", 0, 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

TEST(the_first_family_wins)
{
    SET("SHOAL_RANK=0", "SHOAL_RANKS=1", "SHOAL_KEY=k", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a",
        "MASTER_PORT=1", "OMPI_COMM_WORLD_RANK=2");
    (void)read_good("SHOAL", 0, 1);
    SET("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMIX_NAMESPACE=n", "SLURM_PROCID=0",
        "SLURM_NTASKS=1", "SLURM_JOB_ID=1", "SLURM_STEP_ID=2");
    (void)read_good("Open MPI", 1, 2);
}

TEST(an_mpirun_that_was_started_later_contradicts)
{
    SET("SHOAL_RANK=0", "SHOAL_RANKS=2", "SHOAL_KEY=k", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANK is 0 and SHOAL_RANKS 2, but OMPI_COMM_WORLD_RANK is 1 and "
                                 "OMPI_COMM_WORLD_SIZE 2");
    SET("SHOAL_RANK=0", "SHOAL_RANKS=2", "SHOAL_KEY=k", "PMI_RANK=0", "PMI_SIZE=3");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANKS 2, but PMI_RANK is 0 and PMI_SIZE 3");
    /* The same place is no contradiction, and half of one says nothing. */
    SET("SHOAL_RANK=1", "SHOAL_RANKS=2", "SHOAL_KEY=k", "PMI_RANK=1", "PMI_SIZE=2");
    (void)read_good("SHOAL", 1, 2);
    SET("SHOAL_RANK=1", "SHOAL_RANKS=2", "SHOAL_KEY=k", "PMI_RANK=0");
    (void)read_good("SHOAL", 1, 2);
    /* An mpirun further out is noted by the launcher that sets SHOAL_RANK. One that is started below is another one. */
    SET("PMI_RANK=0", "PMI_SIZE=1");
    REQUIRE(environment_note_outer());
    REQUIRE(setenv("SHOAL_RANK", "1", 1) == 0 && setenv("SHOAL_RANKS", "2", 1) == 0 &&
            setenv("SHOAL_KEY", "k", 1) == 0);
    (void)read_good("SHOAL", 1, 2);
    REQUIRE(setenv("PMI_SIZE", "4", 1) == 0);
    check_bad(SHOAL_ERR_INVALID, "PMI_RANK is 0 and PMI_SIZE 4");
}

TEST(keys_tell_jobs_apart)
{
    SET("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1", "TORCHELASTIC_RESTART_COUNT=0");
    struct environment first = read_good("torchrun", 0, 2);
    SET("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1", "TORCHELASTIC_RESTART_COUNT=0");
    struct environment same = read_good("torchrun", 1, 2);
    SET("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1", "TORCHELASTIC_RESTART_COUNT=1");
    struct environment restarted = read_good("torchrun", 0, 2);
    SET("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a1", "MASTER_PORT=0");
    struct environment other = read_good("torchrun", 0, 2);
    SET("SHOAL_RANK=0", "SHOAL_RANKS=2", "SHOAL_KEY=a");
    struct environment ours = read_good("SHOAL", 0, 2);
    CHECK_STRING(first.key, same.key);
    CHECK(strcmp(first.key, restarted.key) != 0);
    CHECK(strcmp(first.key, other.key) != 0);
    CHECK(strcmp(first.key, ours.key) != 0);
}

TEST(half_a_family_names_what_is_missing)
{
    SET("SHOAL_RANK=0");
    check_bad(SHOAL_ERR_INVALID, "some variables of SHOAL are set in the environment, but SHOAL_RANKS, "
                                 "SHOAL_KEY|SHOAL_ADDRESS are not");
    SET("SHOAL_RANKS=2");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANK, SHOAL_KEY|SHOAL_ADDRESS are not");
    SET("SHOAL_RANK=0", "SHOAL_RANKS=2");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_KEY|SHOAL_ADDRESS is not");
    SET("SHOAL_RANK=0", "SHOAL_RANKS=2", "SHOAL_KEY=");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_KEY|SHOAL_ADDRESS is not");
    SET("SHOAL_KEY=k");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANK, SHOAL_RANKS are not");
    SET("RANK=0");
    check_bad(SHOAL_ERR_INVALID, "some variables of torchrun are set in the environment, but WORLD_SIZE, "
                                 "MASTER_ADDR, MASTER_PORT are not");
    SET("WORLD_SIZE=2", "RANK=");
    check_bad(SHOAL_ERR_INVALID, "RANK, MASTER_ADDR, MASTER_PORT are not");
    SET("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a");
    check_bad(SHOAL_ERR_INVALID, "MASTER_PORT is not");
    SET("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1");
    check_bad(SHOAL_ERR_INVALID, "MASTER_ADDR is not");
    SET("OMPI_COMM_WORLD_RANK=0");
    check_bad(SHOAL_ERR_INVALID, "OMPI_COMM_WORLD_SIZE, PMIX_NAMESPACE|");
    SET("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2");
    check_bad(SHOAL_ERR_INVALID, "PMIX_NAMESPACE|OMPI_MCA_orte_ess_jobid|OMPI_MCA_ess_base_jobid is not");
    SET("PMI_SIZE=2");
    check_bad(SHOAL_ERR_INVALID, "PMI_RANK is not");
    SET("SLURM_PROCID=0", "SLURM_STEP_ID=1", "SLURM_JOB_ID=2");
    check_bad(SHOAL_ERR_INVALID,
              "some variables of Slurm are set in the environment, but SLURM_NTASKS is not");
    /* Not the shell of a batch job, which is rank 0. */
    SET("SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_ID=3");
    check_bad(SHOAL_ERR_INVALID,
              "some variables of Slurm are set in the environment, but SLURM_STEP_ID is not");
    SET("SLURM_PROCID=0", "SLURM_STEP_ID=1", "SLURM_JOB_ID=2");
    char text[256];
    environment_describe(text, sizeof text);
    CHECK(strstr(text, "SLURM_NTASKS") != NULL);
}

/* Variables that are set for other reasons. */
TEST(what_is_no_family_does_not_count)
{
    SET("MASTER_ADDR=a", "MASTER_PORT=1");
    (void)read_good("alone", 0, 1);
    SET("LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2");
    (void)read_good("alone", 0, 1);
    SET("PMIX_NAMESPACE=n");
    (void)read_good("alone", 0, 1);
    /* An allocation, and the shell of a batch job in two versions. */
    SET("SLURM_NTASKS=8", "SLURM_JOB_ID=3", "SLURM_NNODES=2");
    (void)read_good("alone", 0, 1);
    SET("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=3");
    (void)read_good("alone", 0, 1);
    SET("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=3", "SLURM_STEP_ID=4294967291");
    (void)read_good("alone", 0, 1);
    SET("SHOAL_RANK=", "SHOAL_RANKS=", "SHOAL_KEY=", "RANK=", "WORLD_SIZE=");
    (void)read_good("alone", 0, 1);
}

TEST(numbers_that_are_none)
{
    SET("SHOAL_RANK=x", "SHOAL_RANKS=2", "SHOAL_KEY=k");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANK is \"x\", a number expected");
    SET("SHOAL_RANK=2", "SHOAL_RANKS=2", "SHOAL_KEY=k");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANK is 2, 0 to 1 expected");
    SET("SHOAL_RANK=-1", "SHOAL_RANKS=2", "SHOAL_KEY=k");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANK is -1");
    SET("SHOAL_RANK=0", "SHOAL_RANKS=0", "SHOAL_KEY=k");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANKS is 0, 1 to 4096 expected");
    SET("SHOAL_RANK=0", "SHOAL_RANKS=99999999999999999999", "SHOAL_KEY=k");
    check_bad(SHOAL_ERR_INVALID, "SHOAL_RANKS is \"99999999999999999999\"");
    SET("RANK=1 ", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1");
    check_bad(SHOAL_ERR_INVALID, "RANK is \"1 \"");
    SET("PMI_RANK=0", "PMI_SIZE=2", "PMI_FD=zero");
    check_bad(SHOAL_ERR_INVALID, "PMI_FD is \"zero\"");
}

static void check_hosts(const char *text)
{
    struct environment environment;
    REQUIRE_OK(environment_read(&environment));
    CHECK_STRING(environment.hosts_text, text);
}

TEST(several_hosts_are_noted)
{
    SET("RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1", "LOCAL_WORLD_SIZE=2");
    check_hosts("WORLD_SIZE is 4, LOCAL_WORLD_SIZE is 2");
    SET("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=3", "PMIX_NAMESPACE=n",
        "OMPI_COMM_WORLD_LOCAL_SIZE=1");
    check_hosts("OMPI_COMM_WORLD_SIZE is 3, OMPI_COMM_WORLD_LOCAL_SIZE is 1");
    SET("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NNODES=2");
    check_hosts("SLURM_STEP_NUM_NODES|SLURM_NNODES is 2");
    /* The step's own number counts, not the allocation's. */
    SET("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_NNODES=2",
        "SLURM_STEP_NUM_NODES=1");
    check_hosts("");
}

/* Where ranks of several hosts meet is as good as a key; alone it makes no world of several ranks. */
TEST(an_address_stands_for_a_key)
{
    SET("SHOAL_RANK=1", "SHOAL_RANKS=2", "SHOAL_ADDRESS=node:1");
    (void)read_good("SHOAL", 1, 2);
    SET("SHOAL_ADDRESS=node:1");
    (void)read_good("alone", 0, 1);
}

TEST(ranks_of_mpi_are_compared_with_those_of_launchers)
{
    SET("RANK=0", "WORLD_SIZE=3"); /* says nothing of MPI */
    CHECK_OK(environment_check_mpi(1, "an MPI"));
    SET("PMI_SIZE=2", "PMI_RANK=1");
    CHECK_OK(environment_check_mpi(2, "an MPI"));
    if (CHECK_STATUS(environment_check_mpi(1, "Open MPI v4"), SHOAL_ERR_INVALID)) {
        CHECK_ERROR_TEXT("PMI_SIZE is 2, but MPI_COMM_WORLD of Open MPI v4 has 1 rank:");
    }
    SET("OMPI_COMM_WORLD_SIZE=4");
    if (CHECK_STATUS(environment_check_mpi(1, "MPICH"), SHOAL_ERR_INVALID)) {
        CHECK_ERROR_TEXT("OMPI_COMM_WORLD_SIZE is 4, but MPI_COMM_WORLD of MPICH has 1 rank:");
    }
    /* What Slurm, or the mpirun around this one, has set is still there. */
    SET("OMPI_COMM_WORLD_SIZE=4", "PMI_SIZE=1", "SHOAL_RANKS=8");
    CHECK_OK(environment_check_mpi(4, "Open MPI"));
    CHECK_OK(environment_check_mpi(1, "MPICH"));
    CHECK_STATUS(environment_check_mpi(2, "MPICH"), SHOAL_ERR_INVALID);
    SET("SHOAL_RANKS=2");
    if (CHECK_STATUS(environment_check_mpi(1, "MPICH"), SHOAL_ERR_INVALID)) {
        CHECK_ERROR_TEXT("SHOAL_RANKS is 2, but");
    }
}
