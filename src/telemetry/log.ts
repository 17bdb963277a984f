/** The part of a logger that background jobs use. */
export interface Log {
  info (details: object, message: string): void
  warn (details: object, message: string): void
}
