import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import files from '@fastify/static'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { acceptsHtml, basePath } from './pages.ts'
import { fail } from '../../rules/api-error.ts'

// The folder that `scripts/console.mjs` builds.
const FOLDER = fileURLToPath(new URL('../../../console', import.meta.url))
const YEAR = 365 * 24 * 60 * 60

/**
 * Serves the console. Its files have hashes in their names, so browsers cache the files for a year. The page is never
 * cached. Every other path below `/console/` is a view of the application and returns the page.
 */
export async function installConsole (app: FastifyInstance) {
  const source = readFileSync(`${FOLDER}/index.html`, 'utf8')
  const headers = {
    'content-security-policy': policyOf(source),
    'cross-origin-opener-policy': 'same-origin',
    'permissions-policy': PERMISSIONS,
    'content-type': 'text/html; charset=utf-8'
  }
  let page: string | undefined
  const show = async (request: FastifyRequest, reply: FastifyReply) => {
    if (!acceptsHtml(request)) return fail('not_found')
    page ??= source.replaceAll('"/console/', `"${basePath(app)}/console/`)
    return reply.headers(headers).serializer(String).send(page)
  }

  await app.register(async (console) => {
    console.addHook('onRoute', (route) => {
      const isFile = route.url !== '/console' && !route.url.endsWith('/*')
      const cache = isFile ? { cache: `public, max-age=${YEAR}, immutable` } : {}
      route.config = { ...route.config, access: 'public', limit: 'docs', ...cache }
      route.schema = { ...route.schema, hide: true }
    })
    console.get('/console', async (_request, reply) => reply.redirect(`${basePath(app)}/console/`, 308))
    console.get('/console/*', show)
    await console.register(files, {
      root: FOLDER,
      prefix: '/console/',
      // Registers a route for each file, so that no other path reaches the file system.
      wildcard: false,
      index: false,
      globIgnore: ['index.html', '*.br', '*.gz'],
      preCompressed: true,
      decorateReply: false,
      cacheControl: false,
      lastModified: false
    })
  })
}

/** Whether a browser opens a malformed address below `/console/`, such as `/console/%`, which no route matches. */
export const isLostInConsole = (request: FastifyRequest): boolean =>
  (request.raw.url ?? '').startsWith('/console/') && acceptsHtml(request)

const PERMISSIONS = [
  'clipboard-write=(self)',
  ...['camera', 'clipboard-read', 'display-capture', 'geolocation', 'microphone', 'payment', 'usb'].map((one) => `${one}=()`)
].join(', ')

/** The content security policy of the page: only the script of the build runs, and creates no HTML from text. */
function policyOf (page: string): string {
  const hashes = [...page.matchAll(/<script [^>]*\bintegrity="(sha256-[A-Za-z0-9+/=]+)"/g)].map(([, hash]) => `'${hash}'`)
  if (hashes.length === 0) throw new Error('dist/console/index.html has no script with a hash: run `npm run build`')
  return [
    "default-src 'none'", `script-src ${hashes.join(' ')}`, "style-src 'self'", "img-src 'self' data:",
    "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'"
  ].join('; ')
}
