// Enforces NetworkPolicy on a cluster's one node: kube-router's controller for it, without the rest of kube-router.
//
// The whole of it brings routing by BGP and a client library nine versions older than the Kubernetes beside it, which
// would be compiled for nothing. It takes kube-router's flags and ends with an error when a part fails to start.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	if err := enforce(config); err != nil {
		fmt.Fprintln(os.Stderr, "network-policies:", err)
		os.Exit(1)
	}
}

// enforce returns only when it can't start; the cluster ends it with its namespaces.
func enforce(config *options.KubeRouterConfig) error {
	clientConfig, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(clientConfig)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, iptables, ipsets)
	if err != nil {
		return err
	}
	never := make(chan struct{})
	factory.Start(never)
	factory.WaitForCacheSync(never)
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{pods, controller.PodEventHandler},
		{namespaces, controller.NamespaceEventHandler},
		{policies, controller.NetworkPolicyEventHandler},
	} {
		if _, err := watched.informer.AddEventHandler(watched.handler); err != nil {
			return err
		}
	}
	// Nobody asks for its health here, but it waits until each sign of it is taken.
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(heartbeats, never, &running)
	running.Wait()
	return nil
}
