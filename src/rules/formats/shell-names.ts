/**
 * Variables that a POSIX shell does not simply set when it sources `NAME='value'`: the shell evaluates the value as
 * arithmetic, which can run code (`RANDOM`), runs the value at a prompt (`PROMPT_COMMAND`) or at new mail (`MAILPATH`),
 * ends the script (`UID`), or changes the value (`SECONDS`). Measured in bash, dash and BusyBox. Special variables that
 * only zsh has, such as `path` and `USERNAME`, are not listed.
 *
 * A regular expression without anchors, in the common syntax of JavaScript and jq: the recipes contain it too.
 */
export const SPECIAL_SHELL_NAMES = [
  'BASH[A-Za-z0-9_]*', 'PS[0-9]', 'COMP_WORDBREAKS', 'DIRSTACK', 'EPOCHREALTIME', 'EPOCHSECONDS', 'EUID', 'FUNCNAME',
  'GROUPS', 'HISTCMD', 'LINENO', 'MAILCHECK', 'MAILPATH', 'OPTIND', 'PIPESTATUS', 'PPID', 'PROMPT_COMMAND', 'RANDOM',
  'SECONDS', 'SHELLOPTS', 'SHLVL', 'SRANDOM', 'UID', '_'
].join('|')

const SHELL_NAME = new RegExp(`^(?!(?:${SPECIAL_SHELL_NAMES})$)[A-Za-z_][A-Za-z0-9_]*$`)

/** Whether each POSIX shell sets a variable of this name to any value, and does nothing else. */
export const isShellName = (name: string): boolean => SHELL_NAME.test(name)
