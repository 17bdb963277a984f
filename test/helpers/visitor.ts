/** A page that the browser received. */
export interface Seen { status: number, headers: Headers, text: string, url: string }

/** A form: the path that it is sent to, its fields with their default values, and its buttons. */
export interface FoundForm {
  action: string
  fields: [name: string, value: string][]
  buttons: [name: string, value: string][]
}

/**
 * A simulated browser without scripts: keeps cookies, sends forms, and does not follow redirects. Sends `headers` with
 * every request.
 */
export function visitor (address: string, headers: Record<string, string> = { 'sec-fetch-site': 'same-origin' }) {
  const jar = new Map<string, string>()

  async function request (url: string, init: RequestInit = {}): Promise<Seen> {
    const cookie = [...jar].map(([name, value]) => `${name}=${value}`).join('; ')
    const response = await fetch(
      new URL(url, address),
      { ...init, redirect: 'manual', headers: { ...headers, ...(cookie !== '' && { cookie }), ...init.headers } }
    )
    for (const set of response.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(set) ?? []
      if (name === undefined || value === undefined) continue
      if (/max-age=0/i.test(set)) jar.delete(name)
      else jar.set(name, value)
    }
    return {
      status: response.status, headers: response.headers, text: await response.text(), url: new URL(url, address).href
    }
  }

  async function send (
    form: FoundForm, changes: Record<string, string | string[] | undefined> = {}, more: Record<string, string> = {}
  ): Promise<Seen> {
    const body = new URLSearchParams(form.fields.filter(([name]) => !(name in changes)))
    for (const [name, value] of Object.entries(changes)) for (const one of [value ?? []].flat()) body.append(name, one)
    return request(form.action, { method: 'POST', body, headers: more })
  }

  return {
    jar,
    request,
    open: (url: string) => request(url),
    send,
    /** Sends the sign-in form of a page. Returns the page after the redirect. */
    async signIn (page: Seen, email: string, password: string): Promise<Seen> {
      const answer = await send(formIn(page), { email, password })
      return answer.status === 303 ? request(answer.headers.get('location')!) : answer
    },
    /** Presses a button of a consent page. Returns the URL of the redirect. */
    async decide (
      page: Seen, decision: 'allow' | 'deny', changes: Record<string, string | string[] | undefined> = {}
    ): Promise<URL> {
      const answer = await send(formIn(page), { decision, ...changes })
      if (answer.status !== 303) throw new Error(`${answer.status}: ${answer.text}`)
      return new URL(answer.headers.get('location')!)
    }
  }
}
export type Visitor = ReturnType<typeof visitor>

export function formIn ({ text }: Seen): FoundForm {
  const [, attributes = '', inside = ''] = /<form([^>]*)>([\s\S]*?)<\/form>/.exec(text) ?? (() => {
    throw new Error(`no form: ${text}`)
  })()
  const tags = [...inside.matchAll(/<(input|button)([^>]*)>/g)].map(([, tag, rest = '']) =>
    ({ tag, ...attributesOf(rest) } as Record<string, string> & { tag: string }))
  const named = (wanted: (one: Record<string, string>) => boolean) => tags.filter((one) =>
    one.name !== undefined && wanted(one)).map((one): [string, string] => [one.name!, one.value ?? ''])
  return {
    action: attributesOf(attributes).action ?? '',
    fields: named(({ tag, type, checked }) => tag === 'input' && (type !== 'checkbox' || checked !== undefined)),
    buttons: named(({ tag }) => tag === 'button')
  }
}

function attributesOf (text: string): Record<string, string> {
  return Object.fromEntries([...text.matchAll(/([a-z-]+)(?:="([^"]*)")?/g)].map(([
    , name = '', value = ''
  ]) => [name, unescape(value)]))
}

const unescape = (text: string) => text.replace(/&#(\d+);/g, (_, code: string) => String.fromCharCode(Number(code)))
