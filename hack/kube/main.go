// Kubernetes for tests, as its authors wrote it, from Go modules: one binary that is the component it is called as.
//
// The components share nearly all of their code, so one binary for all of them is a seventh of the size of seven and
// links in a seventh of the time. `build` puts a symbolic link for each name beside it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// Each component's own main imports these for what they register: log format, metrics of clients and of Go.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := commandNamed(name)
	if !known {
		fmt.Fprintf(os.Stderr, "%s: call this binary as etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy or kubectl\n", name)
		os.Exit(2)
	}
	if name == "kubectl" { // it has its own way to say what went wrong
		util.CheckErr(cli.RunNoErrOutput(command))
		return
	}
	os.Exit(cli.Run(command))
}

// commandNamed makes the command of one component only: each registers flags that are global to the process.
func commandNamed(name string) (*cobra.Command, bool) {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand(), true
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand(), true
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand(), true
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background()), true
	case "kube-proxy":
		return proxy.NewProxyCommand(), true
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand(), true
	}
	return nil, false
}
