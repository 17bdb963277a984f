import type { Command } from 'commander'
import { Misuse } from './failure.ts'

/** The words that a shell completes: commands, and the options of each. */
interface Words { commands: { name: string, about: string, options: string[] }[] }

const wordsOf = (program: Command): Words => ({
  commands: program.commands.map((command) => ({
    name: command.name(),
    about: command.description(),
    options: [...program.options, ...command.options].flatMap(({ long }) => long ?? []).concat('--help')
  }))
})

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`

const SHELLS: Record<string, (words: Words) => string> = {
  bash: ({ commands }) => `_strongroom () {
  local word=\${COMP_WORDS[COMP_CWORD]} command=\${COMP_WORDS[1]} words
  if [ "$COMP_CWORD" -eq 1 ]; then words=${quoted(commands.map(({ name }) => name).join(' '))}
  else case $command in
${commands.map(({ name, options }) => `    ${name}) words=${quoted(options.join(' '))} ;;`).join('\n')}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _strongroom strongroom
`,
  zsh: ({ commands }) => `#compdef strongroom
_strongroom () {
  if (( CURRENT == 2 )); then
    local -a commands=(${commands.map(({ name, about }) => quoted(`${name}:${about}`)).join(' ')})
    _describe command commands
  else case $words[2] in
${commands.map(({ name, options }) => `    ${name}) compadd -- ${options.join(' ')}; _files ;;`).join('\n')}
  esac; fi
}
compdef _strongroom strongroom
`,
  fish: ({ commands }) => commands.map(({ name, about, options }) => [
    `complete -c strongroom -n __fish_use_subcommand -a ${name} -d ${quoted(about)}`,
    ...options.map((option) => `complete -c strongroom -n '__fish_seen_subcommand_from ${name}' -l ${option.slice(2)}`)
  ].join('\n')).join('\n') + '\n'
}

/** The script that completes words of this command in a shell. */
export function completion (program: Command, shell: string): string {
  if (!Object.hasOwn(SHELLS, shell)) throw new Misuse(`There is no completion for ${shell}. The shells are ${Object.keys(SHELLS).join(', ')}.`)
  return SHELLS[shell]!(wordsOf(program))
}
