import { awayOf, Failure } from './failure.ts'
import { isLoopback, readSecretFile } from './settings.ts'

// The token that a platform (CI service, cluster) signed for this command: docs/workloads.md.

/**
 * The name of the variable that has the token of the platform; undefined if STRONGROOM_ID_TOKEN is not set. GitLab sets
 * variables of any name: STRONGROOM_ID_TOKEN is the token itself, or the name of its variable.
 */
export function idTokenVariable (env: NodeJS.ProcessEnv): string | undefined {
  const { STRONGROOM_ID_TOKEN: text = '' } = env
  if (text === '') return undefined
  return /^[A-Za-z_][A-Za-z0-9_]*$/.test(text) ? text : 'STRONGROOM_ID_TOKEN'
}

/**
 * The token of the platform on which this command runs, read anew: from the file that STRONGROOM_ID_TOKEN_FILE names,
 * from the variable of STRONGROOM_ID_TOKEN, or from GitHub Actions, for this audience.
 */
export async function platformToken (audience: string, signal: AbortSignal): Promise<string> {
  const { STRONGROOM_ID_TOKEN_FILE: path = '', ACTIONS_ID_TOKEN_REQUEST_URL: address = '' } = process.env
  const variable = idTokenVariable(process.env)
  if (path !== '' && variable !== undefined) {
    throw new Failure('Set STRONGROOM_ID_TOKEN or STRONGROOM_ID_TOKEN_FILE, not both.')
  }
  if (path !== '') return tokenIn(readSecretFile(path, 'STRONGROOM_ID_TOKEN_FILE'), 'The file that STRONGROOM_ID_TOKEN_FILE names')
  if (variable !== undefined) return tokenIn(process.env[variable] ?? '', `The variable ${variable}`)
  if (address !== '') return tokenOfGitHub(address, audience, signal)
  throw new Failure('STRONGROOM_WORKLOAD is set, but there is no token of a platform: set STRONGROOM_ID_TOKEN or STRONGROOM_ID_TOKEN_FILE, or give the job of GitHub Actions the permission `id-token: write`.')
}

function tokenIn (text: string, source: string): string {
  const token = text.trim()
  // The text is not shown: it may be another secret.
  if (!/^[\w-]+\.[\w-]+\.[\w-]+$/.test(token)) throw new Failure(`${source} has no token of a platform (a JWT).`)
  return token
}

async function tokenOfGitHub (address: string, audience: string, signal: AbortSignal): Promise<string> {
  const url = URL.canParse(address) ? new URL(address) : undefined
  if (url === undefined || (url.protocol !== 'https:' && !(url.protocol === 'http:' && isLoopback(url.hostname)))) {
    throw new Failure('ACTIONS_ID_TOKEN_REQUEST_URL is no https address.')
  }
  url.searchParams.set('audience', audience)
  const headers = { authorization: `Bearer ${process.env.ACTIONS_ID_TOKEN_REQUEST_TOKEN ?? ''}`, accept: 'application/json' }
  try {
    const response = await fetch(url, { headers, redirect: 'error', signal })
    if (!response.ok) throw new Failure(`GitHub Actions gave no token: status ${response.status}.`)
    const { value } = Object(await response.json()) as { value?: unknown }
    return tokenIn(String(value), 'The response of GitHub Actions')
  } catch (error) {
    if (error instanceof SyntaxError) throw new Failure('The response of GitHub Actions has no token of a platform.')
    throw awayOf('The token service of GitHub Actions', error)
  }
}
