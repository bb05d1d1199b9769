/* SPDX-License-Identifier: MIT */
/*
 * Completion for bash. Functions that list the words of each table are made here; the rest is the same whatever the
 * commands are. Nothing of the package bash-completion is needed, but its completion of other commands is used if it is
 * there.
 */
#include "completion/words.h"

#include <stdio.h>

static void print_words(const struct tool_option *row)
{
    char word[COMPLETION_WORD_BYTES];
    for (size_t i = 0; completion_word(row, i, word); i++) {
        printf(" %s", word);
    }
}

/* What a function of the script prints for a row: "words fsdp ddp", "file". */
static void print_kind(const struct tool_option *row)
{
    static const char *const names[] = {
        [COMPLETION_NOTHING] = "",        [COMPLETION_ANY] = "any",   [COMPLETION_WORDS] = "words",
        [COMPLETION_LIST] = "list",       [COMPLETION_FILE] = "file", [COMPLETION_FOLDER] = "folder",
        [COMPLETION_PROGRAM] = "program",
    };
    printf("echo '%s", names[completion_kind_of(row)]);
    print_words(row);
    printf("' ;;\n");
}

/* "bench/fsdp" */
static void print_path(const struct tool_choice *command, const struct tool_choice *choice)
{
    printf("%s%s%s", command->name, choice ? "/" : "", choice ? choice->name : "");
}

static void print_options(const struct tool_choice *command, const struct tool_choice *choice,
                          const struct tool_options *options)
{
    printf("    ");
    print_path(command, choice);
    printf(") echo '--help");
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct tool_option *row = &options->rows[i];
        if (completion_is_option(row)) {
            printf(" %s%s%s", row->name, row->alias ? " " : "", row->alias ? row->alias : "");
        }
    }
    printf("' ;;\n");
}

static void print_values(const struct tool_choice *command, const struct tool_choice *choice,
                         const struct tool_options *options)
{
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct tool_option *row = &options->rows[i];
        if (!completion_is_option(row) || completion_kind_of(row) == COMPLETION_NOTHING) {
            continue;
        }
        printf("    ");
        print_path(command, choice);
        /* A value that may be left out follows '=' only. */
        printf(":%s%s", row->name, row->may_stand_alone ? "=" : "");
        if (row->alias) {
            printf(" | ");
            print_path(command, choice);
            printf(":%s", row->alias);
        }
        printf(") ");
        print_kind(row);
    }
}

/* The first one: all operands of a command are of its kind. */
static void print_operands(const struct tool_choice *command, const struct tool_choice *choice,
                           const struct tool_options *options)
{
    for (size_t i = 0; i < options->n_rows; i++) {
        if (completion_is_operand(&options->rows[i])) {
            printf("    ");
            print_path(command, choice);
            printf(") ");
            print_kind(&options->rows[i]);
            return;
        }
    }
}

static void print_choices(const struct completion *completion)
{
    for (size_t i = 0; i < completion->n_commands; i++) {
        const struct tool_options *options = completion->commands[i].options;
        if (options->n_choices == 0) {
            continue;
        }
        printf("    %s) echo '", completion->commands[i].name);
        for (size_t k = 0; k < options->n_choices; k++) {
            printf("%s%s", k > 0 ? " " : "", options->choices[k].name);
        }
        printf("' ;;\n");
    }
}

static void begin_function(const char *name, const char *about)
{
    printf("\n# %s\n_shoal_%s()\n{\n    case $1 in\n", about, name);
}

static void end_function(void)
{
    printf("    esac\n}\n");
}

/* Bash quotes paths, and adds a slash to folders. Outside of completion, as in tests, it refuses. */
#define AS_PATHS              \
    "        compopt -o file" \
    "names 2>/dev/null || :\n"

static const char engine[] =
    "\n"
    "# _shoal_paths OPTION: adds the files (-f) or folders (-d). A line that is no file is the beginning of "
    "a name\n"
    "# that goes on in the next one.\n"
    "_shoal_paths()\n"
    "{\n"
    "    local line name=''\n"
    "    while IFS= read -r line; do\n"
    "        name+=$line\n"
    "        if [[ -e ${name/#\\~\\//$HOME/} || -L ${name/#\\~\\//$HOME/} ]]; then\n"
    "            COMPREPLY+=(\"$name\")\n"
    "            name=''\n"
    "        else\n"
    "            name+=$'\\n'\n"
    "        fi\n"
    "    done < <(compgen \"$1\" -- \"$word\")\n"
    "    if [[ -n $name ]]; then\n"
    "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY <<<\"${name%$'\\n'}\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "# _shoal_reply KIND [WORD...]: what can stand where the cursor is, beginning with $word.\n"
    "_shoal_reply()\n"
    "{\n"
    "    local kind=$1\n"
    "    shift\n"
    "    case $kind in\n"
    "    words) mapfile -t COMPREPLY < <(compgen -W \"$*\" -- \"$word\") ;;\n"
    "    list)\n"
    "        local before=''\n"
    "        [[ $word != *,* ]] || before=${word%,*},\n"
    "        compopt -o nospace 2>/dev/null || :\n"
    "        mapfile -t COMPREPLY < <(compgen -P \"$before\" -W \"$*\" -- \"${word##*,}\")\n"
    "        ;;\n"
    "    folder)\n" AS_PATHS "        _shoal_paths -d\n"
    "        ;;\n"
    "    file)\n" AS_PATHS "        _shoal_paths -f\n"
    "        ;;\n"
    "    program)\n" AS_PATHS "        mapfile -t COMPREPLY < <(compgen -c -- \"$word\")\n"
    "        _shoal_paths -f\n"
    "        ;;\n"
    "    esac\n"
    "}\n"
    "\n"
    "_shoal()\n"
    "{\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} path='' option='' before i kind\n"
    "    COMPREPLY=()\n"
    "    # What the words before the cursor say. \"=\" is a word of its own.\n"
    "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "        before=${COMP_WORDS[i]}\n"
    "        if [[ -n $option ]]; then\n"
    "            [[ $before == '=' ]] || option=''\n"
    "        elif [[ -z $path ]]; then\n"
    "            path=$before\n"
    "        elif [[ $before == -* ]]; then\n"
    "            if [[ -n $(_shoal_value \"$path:$before\") ]]; then\n"
    "                option=$before\n"
    "            elif [[ ${COMP_WORDS[i + 1]} == '=' ]]; then\n"
    "                option=$before=\n"
    "            fi\n"
    "        elif [[ \" $(_shoal_choices \"${path%%/*}\") \" == *\" $before \"* ]]; then\n"
    "            path=${path%%/*}/$before\n"
    "        elif [[ $(_shoal_operand \"$path\") == program ]]; then\n"
    "            if declare -F _command_offset >/dev/null; then\n"
    "                _command_offset \"$i\"\n"
    "            else\n"
    "                _shoal_reply file\n"
    "            fi\n"
    "            return\n"
    "        fi\n"
    "    done\n"
    "    if [[ $word == '=' ]]; then\n"
    "        word=''\n"
    "    fi\n"
    "    if [[ -n $option ]]; then\n"
    "        read -r -a kind <<<\"$(_shoal_value \"$path:$option\")\"\n"
    "        _shoal_reply \"${kind[@]}\"\n"
    "    elif [[ -z $path ]]; then\n"
    "        _shoal_reply words \"$_shoal_commands --help --version\"\n"
    "    elif [[ $word == -* ]]; then\n"
    "        _shoal_reply words \"$(_shoal_options \"$path\")\"\n"
    "    elif [[ -n $(_shoal_choices \"${path%%/*}\") ]]; then\n"
    "        _shoal_reply words \"$(_shoal_choices \"${path%%/*}\")\"\n"
    "    else\n"
    "        read -r -a kind <<<\"$(_shoal_operand \"$path\")\"\n"
    "        _shoal_reply \"${kind[@]}\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _shoal shoal\n";

void completion_print_bash(const struct completion *completion)
{
    printf("# shellcheck shell=bash\n"
           "# Completion of shoal for bash. Made by `shoal --completion bash` from the tables of its "
           "commands.\n\n"
           "_shoal_commands='");
    for (size_t i = 0; i < completion->n_commands; i++) {
        printf("%s%s", i > 0 ? " " : "", completion->commands[i].name);
    }
    printf("'\n");
    begin_function("choices", "What the first word of a command is one of, if it is.");
    print_choices(completion);
    end_function();
    begin_function("options", "The options of a command.");
    completion_visit(completion, print_options);
    end_function();
    begin_function("value", "What kind of value follows an option, and its words if they are known.");
    completion_visit(completion, print_values);
    end_function();
    begin_function("operand", "The same, of a command's operand.");
    completion_visit(completion, print_operands);
    end_function();
    fputs(engine, stdout);
}
