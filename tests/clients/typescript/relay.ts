// A TCP relay between a client and the service, to cut their connections in the middle.
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

export class Relay {
  private readonly sockets = new Set<Socket>();

  private constructor(private readonly server: Server) {}

  /** Listens on a loopback port and passes everything on to `address`, until it is cut. */
  static async to(address: string): Promise<Relay> {
    const port = Number(address.slice(address.lastIndexOf(':') + 1));
    const host = address.slice(0, address.lastIndexOf(':')).replace(/[[\]]/g, '');
    const relay: Relay = new Relay(createServer((near) => relay.passOn(near, connect(port, host))));
    await new Promise<void>((resolve) => relay.server.listen(0, '127.0.0.1', resolve));
    return relay;
  }

  get address(): string {
    return `127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** Cuts every connection; new ones are accepted again. */
  cut(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  close(): void {
    this.server.close();
    this.cut();
  }

  private passOn(near: Socket, far: Socket): void {
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      this.sockets.add(from);
      from.pipe(to);
      from.on('error', () => {});
      from.on('close', () => {
        this.sockets.delete(from);
        to.destroy();
      });
    }
  }
}
