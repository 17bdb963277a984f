import { chosen, environmentOf, requireFits, type Choice } from './environment.ts'
import { Failure, Misuse } from './failure.ts'
import { mount } from './mount.ts'
import { tell } from './output.ts'
import { hasUnfinished } from './unfinished.ts'
import { loadOrRecall, valuesOf, type Reading } from './values.ts'

export interface RunOptions extends Reading, Choice { mount: string[] }

/**
 * Starts a command with the values of a place in its environment. Returns the exit status of the command; every failure
 * before its start is a `Failure`.
 */
export async function run (
  argument: string | undefined, command: readonly string[], options: RunOptions
): Promise<number> {
  if (command.length === 0) throw new Misuse('No command is given: write it after `--`.')
  const { at, loaded } = await loadOrRecall(argument, options)
  if (loaded.left_out.length > 0) {
    const line = `The restrictions of the caller leave out the values of: ${loaded.left_out.join(', ')}.`
    if (options.strict === true) throw new Failure(line)
    tell(line)
  }
  const values = await valuesOf(loaded, at, options.keyFile)
  const selected = chosen(values, options)
  const { environment, warnings } = environmentOf(process.env, selected, options)
  for (const line of warnings) tell(line)
  requireFits([...selected.keys()], environment, command)
  const { launch } = await import('./launch.ts')
  const mayReplace = options.mount.length === 0 && !hasUnfinished()
  return launch(command, environment, mayReplace, () => mount(options.mount, values))
}
