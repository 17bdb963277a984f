import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { basePath, sendPage } from '../pages/pages.ts'
import { cachePages } from './page-cache.ts'
import { OF_DOCS } from './openapi.ts'
import { html } from '../../rules/formats/html.ts'

// The folder that `scripts/client.mjs` builds.
const FOLDER = fileURLToPath(new URL('../../../cli', import.meta.url))

/** What the build says about the file of the client. */
interface About { sha256: string, bytes: number, version: string }

/**
 * Serves the command line client of this build at `/cli/strongroom.mjs`, and a page that says how to install it. Both
 * are there with `CONSOLE=off` and `DOCS_UI=off` too.
 */
export async function installClient (app: FastifyInstance) {
  const about = JSON.parse(readFileSync(`${FOLDER}/about.json`, 'utf8')) as About
  const base = basePath(app)
  const show = async (_request: unknown, reply: FastifyReply) => sendPage(reply, {
    title: 'Command line',
    body: pageOf(about, app.issuer())
  })
  const hidden = { schema: { hide: true }, config: { access: 'public', limit: 'docs' } } as const
  app.get('/cli', hidden, async (_request, reply) => reply.redirect(`${base}/cli/`, 308))
  app.get('/cli/', hidden, show)
  await app.register(async (files) => {
    cachePages(files)
    files.get('/cli/strongroom.mjs', { ...hidden, config: OF_DOCS }, async (_request, reply) =>
      reply.type('text/javascript; charset=utf-8').serializer(String).send(readFileSync(`${FOLDER}/strongroom.mjs`, 'utf8')))
  })
}

const pageOf = ({ sha256, bytes, version }: About, url: string) => html`<h1>Command line</h1>
<p><code>strongroom</code> starts programs with their secrets, and reads and changes them. It is one file of
${String(Math.ceil(bytes / 1000))} KB, version ${version}, and needs only Node.js 20 or newer, on Linux or macOS.
It is tested on Linux; Windows was not tried.</p>
<pre>curl -fsSo strongroom.mjs ${url}/cli/strongroom.mjs
echo '${sha256}  strongroom.mjs' | sha256sum -c
install -d ~/.local/bin
install -m 755 strongroom.mjs ~/.local/bin
ln -sf strongroom.mjs ~/.local/bin/strongroom</pre>
<p>On macOS, check with <code>shasum -a 256 -c</code>. Then sign in, and start a program:</p>
<pre>strongroom login ${url}
strongroom run PROJECT/TARGET/ENVIRONMENT -- COMMAND</pre>
<p>In CI, set <code>STRONGROOM_URL</code> and <code>STRONGROOM_TOKEN</code> instead of signing in.</p>
<p>SHA-256: <code>${sha256}</code></p>`
