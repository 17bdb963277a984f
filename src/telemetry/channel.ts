/** Requests and responses between the supervisor and a worker process. */
export interface Channel {
  /** Rejects if the other process responds with an error, is not connected, or does not respond within the timeout. */
  request<T> (method: string, body?: object, timeoutMs?: number): Promise<T>
  /** Handles a message of the other process. Returns false if the message is neither a request nor a response. */
  receive (message: unknown): boolean
}

interface Request { request: number, method: string, body?: unknown }
interface Response { response: number, result?: unknown, error?: string }

/** One end of a channel. `send` returns false if the other process is not connected. `handlers` answer its requests. */
export function createChannel (
  send: (message: Request | Response) => boolean, handlers: Record<string, (body: never) => unknown> = {}
): Channel {
  const open = new Map<number, (response: Response) => void>()
  let last = 0

  async function handle ({ request, method, body }: Request): Promise<void> {
    try {
      send({ response: request, result: await handlers[method]!(body as never) })
    } catch (error) {
      send({ response: request, error: (error as Error).message })
    }
  }

  return {
    async request<T> (method: string, body?: object, timeoutMs?: number): Promise<T> {
      const request = ++last
      let timer: NodeJS.Timeout | undefined
      try {
        return await new Promise<T>((resolve, reject) => {
          open.set(request, ({ result, error }) => {
            if (error === undefined) resolve(result as T)
            else reject(new Error(error))
          })
          if (timeoutMs !== undefined) timer = setTimeout(() => reject(new Error('no response in time')), timeoutMs)
          if (!send({ request, method, ...(body && { body }) })) reject(new Error('the other process is not connected'))
        })
      } finally {
        clearTimeout(timer)
        open.delete(request)
      }
    },
    receive (message) {
      const received = message as Partial<Request & Response>
      if (received.request !== undefined) handle(received as Request)
      else if (received.response !== undefined) open.get(received.response)?.(received as Response)
      else return false
      return true
    }
  }
}
