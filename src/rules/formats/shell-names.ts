/**
 * Variables that a shell treats specially, as alternatives of a regular expression (also for jq). An assignment to
 * such a variable is evaluated as arithmetic, which can run code (`RANDOM`), fails, ends the script, or has no effect.
 * A shell runs the code in a prompt or in `MAILPATH` when it shows the prompt. docs/recipes.md has the same list.
 */
export const SPECIAL_SHELL_NAMES = [
  'BASH\\w*', 'PS\\d', 'COMP_WORDBREAKS', 'DIRSTACK', 'EPOCHREALTIME', 'EPOCHSECONDS', 'EUID', 'FUNCNAME', 'GROUPS',
  'HISTCMD', 'LINENO', 'MAILPATH', 'OPTIND', 'PIPESTATUS', 'PPID', 'PROMPT_COMMAND', 'RANDOM', 'SECONDS', 'SHELLOPTS',
  'SRANDOM', 'UID', '_'
].join('|')
